"""A service cut off from the cluster for half a minute, by a link that is really down.

The service does not notice the cut. When the link is up it resumes within three seconds, and each
thing has happened once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from schemas.topology import EVENTS, INSTANCES, NODES, POOLS, SAGAS
from services.primitives.errors import BusError
from tests.crash.fleet_shape import REPLACED
from tests.crash.rig import SERVICES, TOOK_EFFECT, Moment, Rig, Shape
from tests.crash.rounds import FAULT, VERDICT, author, resume_seconds_allowed, sample
from tests.support.cluster import leader_of, replicas_current
from tests.support.network import Network, missing

pytestmark = pytest.mark.real

CUT_SECONDS = 30.0
STRUCK_SECONDS_MAX = 20.0
ELECTED_SECONDS_MAX = 20.0
REPLACED_SECONDS_MAX = 60.0
"""On the larger side: requests that the lost leaders never answered end after five seconds each."""
CURRENT_SECONDS_MAX = 30.0
ASK_SECONDS = 0.2
LOOK_SECONDS = 0.05
AWAY = "away"
LED = [SAGAS.name, EVENTS.name, *(each.stream().name for each in (INSTANCES, NODES, POOLS))]
CUTS = [
    ("pool-manager", VERDICT),
    ("health-monitor", None),
    ("notifier", Moment("cordon", TOOK_EFFECT)),
    ("provisioner", Moment("provision", TOOK_EFFECT)),
    ("metrics", FAULT),
]
"""Who is cut off, and as what is seen; None: before anything happens."""


@pytest.fixture(autouse=True)
def network_namespace_support() -> None:
    """Skip where links cannot be made; checked only when these tests run."""
    if reason := missing():
        pytest.skip(reason)


@asynccontextmanager
async def fleet(
    directory: Path, shape: Shape, away: list[str]
) -> AsyncIterator[tuple[Rig, Network]]:
    """A fleet with these processes behind a link of their own."""
    with Network(dict.fromkeys(away, AWAY)) as network:
        async with Rig(directory, shape, network) as rig:
            yield rig, network


async def answers(rig: Rig, service: str) -> float:
    """Wait until a service answers; return when."""
    while True:
        with suppress(BusError):
            await rig.bus.request(f"$SRV.PING.{service}", b"", timeout_seconds=ASK_SECONDS)
            return asyncio.get_running_loop().time()
        await asyncio.sleep(LOOK_SECONDS)


@pytest.mark.parametrize(
    ("service", "moment"), CUTS, ids=[f"{service} at {moment}" for service, moment in CUTS]
)
async def test_cut_off_service_resumes_without_repeating_anything(
    tmp_path: Path, service: str, moment: Moment | None
) -> None:
    """No replica replaces it: its own work waits, and is done within three seconds."""
    clock = asyncio.get_running_loop().time
    async with fleet(tmp_path, Shape(), [f"{service}/1"]) as (rig, network):
        if moment is None:
            network.cut(AWAY)
        else:
            cut = rig.arm(moment, lambda: network.cut(AWAY))
        await rig.break_a_node()
        if moment is not None:
            async with asyncio.timeout(STRUCK_SECONDS_MAX):
                await cut.wait()
        await asyncio.sleep(CUT_SECONDS)  # the cut itself
        network.heal(AWAY)
        healed = clock()
        async with asyncio.timeout(STRUCK_SECONDS_MAX):
            back = await answers(rig, service)
        found, report = await rig.differences()
        signs = (at for at, seen, _ in rig.signs if at > healed and author(seen) == service)
        resumed = next(signs, None)

        assert not found, report
        assert rig.unexpected_ends == []
        assert back - healed <= resume_seconds_allowed()
        assert service == "metrics" or resumed is not None
        assert resumed is None or resumed - healed <= resume_seconds_allowed()


@pytest.mark.parametrize("step", sample(["terminate", "cordon", "provision"], 3))
async def test_the_server_that_leads_is_cut_off_alone_in_the_middle_of_a_saga(
    tmp_path: Path, step: str
) -> None:
    """The others elect a leader and finish the saga; the old leader rejoins, and changes nothing.

    Services are connected with all three, so that some lose their server with it.
    """
    async with fleet(tmp_path, Shape(servers=3, replicas=2), ["n1"]) as (rig, network):
        for stream in LED:
            await led_by(rig, "n1", stream)
        cut = rig.arm(Moment(step, "started"), lambda: network.cut(AWAY))
        node = await rig.break_a_node()
        async with asyncio.timeout(STRUCK_SECONDS_MAX):
            await cut.wait()
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(REPLACED_SECONDS_MAX):
            await rig.until(lambda: any((m, n) == (REPLACED, node) for _, m, n in rig.signs))
        passed = asyncio.get_running_loop().time() - began
        await asyncio.sleep(max(0.0, CUT_SECONDS - passed))  # the rest of the cut
        network.heal(AWAY)
        async with asyncio.timeout(CURRENT_SECONDS_MAX):
            for stream in LED:
                while not await replicas_current(rig.bus, stream):
                    await asyncio.sleep(LOOK_SECONDS)
        found, report = await rig.differences()
        assert not found, report
        assert rig.unexpected_ends == []


async def led_by(rig: Rig, name: str, stream: str) -> None:
    """Have one server lead a stream."""
    async with asyncio.timeout(CURRENT_SECONDS_MAX):
        while await leader_of(rig.bus, stream) != name:
            preferred = {"placement": {"preferred": name}}
            with suppress(BusError):
                await rig.bus.admin(f"STREAM.LEADER.STEPDOWN.{stream}", preferred)
            await asyncio.sleep(LOOK_SECONDS)


async def test_minority_side_is_cut_off_and_rejoins(
    tmp_path: Path,
) -> None:
    """A cut leaves one server and one replica of each service on one side, and two on the other.

    The larger side elects a leader and continues; nothing that the smaller side held is done twice.
    After it rejoined the others are stopped, and it replaces the next node alone.
    """
    clock = asyncio.get_running_loop().time
    shape = Shape(servers=3, replicas=2)
    away = ["n1", *(f"{service}/1" for service in SERVICES)]
    async with fleet(tmp_path, shape, away) as (rig, network):
        rig.workload.holding = True
        draining = rig.arm(Moment("drain", "started"), lambda: network.cut(AWAY))
        node = await rig.break_a_node()
        async with asyncio.timeout(STRUCK_SECONDS_MAX):
            await draining.wait()
        began = clock()
        rig.workload.holding = False
        leader = await leader_of(rig.bus, SAGAS.name, besides=rig.servers[0])
        elected = clock()
        assert leader != "n1"
        assert elected - began <= ELECTED_SECONDS_MAX
        async with asyncio.timeout(REPLACED_SECONDS_MAX):
            await rig.until(lambda: any((m, n) == (REPLACED, node) for _, m, n in rig.signs))
        await asyncio.sleep(max(0.0, began + CUT_SECONDS - clock()))  # the rest of the cut
        network.heal(AWAY)
        async with asyncio.timeout(CURRENT_SECONDS_MAX):
            await rig.led()
            while not await replicas_current(rig.bus, SAGAS.name):
                await asyncio.sleep(LOOK_SECONDS)
        found, report = await rig.differences()
        assert not found, report

        await asyncio.gather(*(rig.replica(service, 2).stop() for service in SERVICES))
        alone = clock()
        await rig.break_a_node()
        found, report = await rig.differences()
        resumed = next(at for at, seen, _ in rig.signs if at > alone and author(seen) in SERVICES)

        assert not found, report
        assert rig.unexpected_ends == []
        assert resumed - alone <= resume_seconds_allowed()
