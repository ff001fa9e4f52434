"""Three servers are restarted one after the other, as a StatefulSet does with the chart's own hook.

The servers have the files of `navarch nats-config write`; the hook, its file and the time until a
pod is killed are those of deploy/helm/nats-values.yaml. The kubelet's part is played here: it runs
the hook, sends SIGTERM at once, and starts the next pod only when the server is whole again.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from msgspec.structs import replace

from schemas import subjects
from schemas.topology import EVENTS, NODES
from services.bus.nats.embedded_server import server_binary
from services.bus.nats.nats_bus import NatsBus
from services.primitives.errors import BusError, Conflict
from tests.cluster.test_secured_cluster import (
    SecuredCluster,
    Server,
    cluster,  # noqa: F401 - a fixture
    until,
)
from tests.support.busyness import allowed
from tests.support.cluster import replicas_current

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
VALUES: Final = Path(__file__).parents[2] / "deploy/helm/nats-values.yaml"
CLIENTS: Final = 12
FAULTS_OF_A_NODE: Final = 16
PAUSE_SECONDS_MAX: Final = 3.0
"""A server that is killed costs four to nine, by its own rule; one that hands over, less."""


def hook() -> tuple[list[str], float]:
    """Return the hook's command and the seconds that a pod has to end."""
    values: Any = yaml.safe_load(VALUES.read_text("utf-8"))
    command = values["container"]["merge"]["lifecycle"]["preStop"]["exec"]["command"]
    return command, values["podTemplate"]["merge"]["spec"]["terminationGracePeriodSeconds"]


@dataclass
class Load:
    """Holds what a client has stored, and its longest wait for an acknowledgement."""

    stored: int = 0
    longest: float = 0.0
    wrong: list[str] = field(default_factory=list)


async def work(bus: NatsBus, number: int, load: Load) -> None:
    """Store event after event, and a record with each; the same again where none is confirmed."""
    revision = await bus.create(NODES, f"training.n{number}", b"0")
    while True:
        begun, name = time.monotonic(), f"{number}-{load.stored}"
        # Of one node only so many faults are kept.
        node = f"n{number}-{load.stored // FAULTS_OF_A_NODE}"
        subject = subjects.node_event("training", node, "fault")
        while True:
            with contextlib.suppress(BusError):
                await bus.publish(subject, name.encode(), msg_id=name)
                break
            await asyncio.sleep(0.02)
        while True:
            try:
                revision = await bus.update(NODES, f"training.n{number}", name.encode(), revision)
                break
            except Conflict:  # the earlier attempt was stored, and its confirmation lost
                entry = await bus.get(NODES, f"training.n{number}")
                if entry is None or entry.value != name.encode():
                    load.wrong.append(f"{name}: another has written {entry}")
                    break
                revision = entry.revision
                break
            except BusError:
                await asyncio.sleep(0.02)
        load.longest = max(load.longest, time.monotonic() - begun)
        load.stored += 1
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def clients(found: SecuredCluster) -> AsyncIterator[list[NatsBus]]:
    """Connect several clients that know all three servers, spread over them."""
    options = found.secured[0].options("admin")
    url = ",".join(each.url for each in found.servers)
    settings = replace(options.settings, url=url, replicas=3)
    made = []
    for number in range(CLIENTS):
        own = type(options)(settings=settings, name=f"c{number}", inbox_prefix=options.inbox_prefix)
        made.append(await NatsBus.connect(own, seconds_max=20))
    try:
        yield made
    finally:
        await asyncio.gather(*(each.close() for each in made))


async def roll(server: Server) -> None:
    """End a pod as the kubelet does: the hook, SIGTERM, and SIGKILL when its time is over."""
    (binary, argument), seconds = hook()
    assert binary == "nats-server"
    argument = argument.replace("/run/navarch/nats.pid", str(server.pid_file))
    done = await asyncio.create_subprocess_exec(str(server_binary()), argument)
    assert await done.wait() == 0
    server.signal(signal.SIGTERM)
    async with asyncio.timeout(seconds):
        await server.wait()
    assert "Entering lame duck mode" in server.log
    await server.start()


async def test_a_rolling_restart_loses_nothing_and_waits_for_no_election(
    cluster: SecuredCluster,  # noqa: F811 - the fixture
) -> None:
    """Every event of twelve clients is stored once; none waits as long as after a kill."""
    loads = [Load() for _ in range(CLIENTS)]
    async with clients(cluster) as connected:
        working = [
            asyncio.create_task(work(bus, number, loads[number]))
            for number, bus in enumerate(connected)
        ]
        await until(lambda: all(each.stored > 5 for each in loads))
        for server in reversed(cluster.servers):  # as a StatefulSet does
            await roll(server)
            for stream in (EVENTS.name, NODES.stream().name):
                await until(lambda stream=stream: replicas_current(connected[0], stream))
        enough = [each.stored + 5 for each in loads]
        await until(lambda: all(e.stored > n for e, n in zip(loads, enough, strict=True)))
        for each in working:
            each.cancel()
        for ended in await asyncio.gather(*working, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
        stored = await connected[0].read(EVENTS.name, subjects.node_event_wildcard("fault"))
    names = [each.data.decode() for each in stored]
    assert len(names) == len(set(names))
    for number, load in enumerate(loads):
        # The last one may have been stored without its confirmation.
        kept = {each for each in names if each.startswith(f"{number}-")}
        assert {f"{number}-{each}" for each in range(load.stored)} <= kept
    assert [each.wrong for each in loads if each.wrong] == []
    longest = max(each.longest for each in loads)
    assert longest < allowed(PAUSE_SECONDS_MAX), longest
