"""Admission: what a new node must pass before it has work, on a real server with scripted peers."""

from schemas.settings import AdmissionSpec
from services.pool_manager.service import build
from services.runtime.embedded import EmbeddedServer
from services.runtime.nats_bus import NatsBus
from tests.pool_manager.fleet import events, peers, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

TESTED = AdmissionSpec(diagnostic="dcgm-2")


async def test_a_new_node_has_no_work_until_its_diagnostic_has_passed(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """It is cordoned at the workload system, tested, and uncordoned: then it is in service."""
    pool = settings(min_nodes=1, admission=TESTED)
    async with Running(server.url, "pool-manager", build, pool):
        await eventually(settled(bus, 1))

    assert ["provision", "bootstrap", "reserve", "check", "open"] == [
        step for step, _ in peers.calls
    ]


async def test_a_new_node_whose_diagnostic_fails_is_sent_back(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The reason is told, the instance is terminated, and another is tried."""
    peers.fail["check"] = "the diagnostic failed: dcgm: GPU 3: memory"
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1, admission=TESTED)):
        [failed, *_] = await eventually(lambda: events(bus, "saga-failed"))
        peers.fail.clear()
        names = await eventually(settled(bus, 1), within_seconds=20)

    assert ("check", "the diagnostic failed: dcgm: GPU 3: memory") == (
        failed["step"],
        failed["reason"],
    )
    assert set(names) == peers.instances
