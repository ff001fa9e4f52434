"""`navarch watch` follows one thing until it settles, with the exit code of its end."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas.fleet_queries import NodeView, PoolView
from schemas.saga_log_entries import SagaDone, SagaStarted
from schemas.saga_params import SagaParams
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.cli.bus_client import BusFleet
from services.cli.change_signal import change_signal
from services.cli.commands.watch_command import follow
from services.fleet_client.saga_progress import Progress
from services.fleet_client.watch_endings import node_ending, pool_ending, saga_ending
from services.pool_manager.service import build
from services.primitives.errors import NavarchError
from services.saga.saga_log import append
from tests.cli.conftest import POOL
from tests.cli.test_commands import navarch
from tests.pool_manager.fleet import settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
SAGA = "drain-n1-1"
FOREVER_SECONDS = 3_600.0
NODE = NodeView(id="n1", pool="training", status="active", health="healthy", gpu_count=8)
ROOM = msgspec.structs.replace(
    POOL, active=3, healthy=3, unhealthy=0, cordoned=0, open_sagas=(), breaker="closed"
)


def saga(status: str) -> Progress:
    """Return a saga about n1."""
    return Progress(
        saga=SAGA, kind="drain", pool="training", node="n1", status=status, reason="r", since=NOW
    )


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("running", None),
        ("unwinding", None),
        ("done", (True, f"{SAGA} is done")),
        ("unwound", (False, f"{SAGA} is unwound: r")),
        ("stuck", (False, f"{SAGA} is stuck: r")),
    ],
)
def test_a_saga_settles_with_its_end(status: str, expected: tuple[bool, str] | None) -> None:
    """A stuck one waits for an operator, so there is nothing left to watch."""
    found = saga_ending(saga(status))
    assert (found and (found.ok, found.text)) == expected


@pytest.mark.parametrize(
    ("change", "last", "expected"),
    [
        ({}, None, (True, "n1 is healthy, in service")),
        ({"cordoned": True}, "done", (True, "n1 is healthy, cordoned")),
        ({"saga": SAGA}, "running", None),
        ({}, "running", None),
        ({}, "unwound", (False, f"{SAGA} is unwound: r")),
        ({"status": "launching"}, None, None),
        ({"status": "leaving"}, None, None),
        ({"health": "unhealthy"}, "done", None),
        ({"lost": True}, None, None),
        ({"health": "degraded"}, None, (True, "n1 is degraded, in service")),
        ({"status": "terminated", "health": "unhealthy"}, "done", (True, "n1 is terminated")),
    ],
)
def test_a_node_settles_when_nothing_is_under_way_about_it(
    change: dict[str, Any], last: str | None, expected: tuple[bool, str] | None
) -> None:
    """An unhealthy one waits for what is done about it."""
    found = node_ending(msgspec.structs.replace(NODE, **change), saga(last) if last else None)
    assert (found and (found.ok, found.text)) == expected


@pytest.mark.parametrize(
    ("change", "sagas", "expected"),
    [
        ({}, [], True),
        ({"active": 2}, [], None),
        ({"unhealthy": 1}, [], None),
        ({"removing": True}, [], None),
        ({"open_sagas": (SAGA,)}, [], None),
        ({}, [saga("running")], None),
        ({}, [saga("running"), saga("stuck")], False),
    ],
)
def test_a_pool_settles_at_its_size_without_a_saga(
    change: dict[str, Any], sagas: Sequence[Progress], *, expected: bool | None
) -> None:
    """A stuck saga holds it up until an operator comes."""
    pool: PoolView = msgspec.structs.replace(ROOM, **change)
    found = pool_ending(pool, sagas)
    assert (found and found.ok) == expected


async def test_a_drain_is_watched_to_its_end(server: EmbeddedServer, bus: NatsBus) -> None:
    """Each step is printed once, with what is waited for and the end, of node, saga and pool."""
    url = server.url
    async with Peers(bus) as peers, Running(url, "pool-manager", build, settings()):
        node, *_ = await eventually(settled(bus, 3))
        done = await navarch("drain", node[:10], "--wait", url=url)
        assert done[0] == 0, done
        assert "waits for" in done[1]

        code, out, err = await navarch("watch", node, "--timeout", "60s", url=url)
        assert (code, err) == (0, "")
        assert out.splitlines()[-1] == f"{node} is healthy, cordoned."
        code, out, err = await navarch("watch", "drain-", "--timeout", "60s", url=url)
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert (lines[-1], len(set(lines))) == (f"drain-{node}-1 is done.", len(lines))
        assert sum("drain succeeded" in line for line in lines) == 1

        code, out, err = await navarch("watch", "training", "--timeout", "60s", url=url)
        assert (code, err) == (0, ""), out
        assert out.endswith("training has its 3 nodes, 3 of them healthy.\n")

        # Nothing remedies it while the breaker is open, so it does not settle.
        await navarch("breaker", "open", "training", "--reason", "x", url=url)
        await peers.make_unhealthy("training", node)
        code, out, err = await navarch("watch", node, "--timeout", "1s", url=url)
        assert (code, "not done within 1s; it goes on: navarch why" in err) == (1, True)
        assert "Now:   It waits for the breaker" in out, out


class Counting(BusFleet):
    """Counts how often the saga is looked at."""

    looks = 0

    async def saga(self, saga: str) -> tuple[Progress, list[Stored]]:
        """Look at it."""
        self.looks += 1
        return await super().saga(saga)


async def test_the_log_alone_moves_a_watch_on(manager: NatsBus) -> None:
    """Nothing is asked again by time, and each entry has it look once at most."""
    params = SagaParams(pool="training", node="training-1")
    started = SagaStarted(id="s", time=NOW, saga=SAGA, kind="drain", params=params)
    at = await append(manager, started, 0, {})
    fleet = Counting(manager)
    answer = await fleet.why(SAGA)
    watching = asyncio.create_task(
        follow(fleet, answer, interval_seconds=0.0, again_seconds=FOREVER_SECONDS)
    )

    async def has_looked() -> bool:
        return fleet.looks > 0

    await eventually(has_looked)
    assert not watching.done()
    await append(manager, SagaDone(id="d", time=NOW, saga=SAGA), at, {})
    async with asyncio.timeout(30):
        assert (await watching).text == f"{SAGA} is done"
    assert fleet.looks <= 1 + 2


async def test_a_stream_that_fails_is_followed_again() -> None:
    """One that has ended well is not; what happens in a burst wakes once."""
    began: list[str] = []

    async def stream(name: str, error: Exception | None) -> AsyncGenerator[int, None]:
        began.append(name)
        for number in range(3):
            yield number
        if error:
            raise error

    async with change_signal(0.0) as signal:
        for _ in range(2):
            signal.listen("bad", lambda: stream("bad", NavarchError("cut off")))
            signal.listen("good", lambda: stream("good", None))
            async with asyncio.timeout(30):
                await signal.wait(FOREVER_SECONDS)
        assert sorted(began) == ["bad", "bad", "good"]


async def test_what_does_not_settle_in_time_goes_on(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """The exit code is 1, and so it is for a name that nothing has."""
    assert manager.connected
    mistyped = await navarch("watch", "nothing", url=server.url)
    assert (mistyped[0], "there is no node, pool or saga 'nothing'" in mistyped[2]) == (1, True)
