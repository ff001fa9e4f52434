"""Every nats-server restarts: the heartbeats, which are kept in memory, are lost."""

import asyncio
from dataclasses import replace

import pytest

from schemas import subjects
from schemas.node_events import Lost, Returned, node_codec
from schemas.topology import EVENTS
from services.simulator.engine import virtual_time
from services.simulator.engine.fault_kinds import BROKER, InjectedFault
from tests.simulator.test_silence_is_confirmed import started
from tests.support.fleet_shapes import SMALL

NODES = 6
CASES = [
    # seconds without server, whether a node falls silent meanwhile
    pytest.param(0.5, False, id="short"),
    pytest.param(60.0, False, id="long"),
    pytest.param(0.5, True, id="short-with-a-silent-node"),
    pytest.param(60.0, True, id="long-with-a-silent-node"),
]


@pytest.mark.parametrize(("away_seconds", "one_is_silent"), CASES)
def test_nodes_that_beat_again_are_not_lost_and_a_silent_one_is(away_seconds, one_is_silent):
    """No marker says that a node fell silent while there was no server."""

    async def play() -> tuple[list[str], list[str]]:
        simulation, node = await started(replace(SMALL, nodes=NODES))
        fleet = simulation.fleet
        if one_is_silent:
            fleet.faults.inject(
                InjectedFault(kind="hang", target=node, seconds=away_seconds + 25.0)
            )
        fleet.faults.inject(InjectedFault(kind="restart", target=BROKER, seconds=away_seconds))
        await asyncio.sleep(away_seconds + 120)
        found = await fleet.operator.bus.read(EVENTS.name, subjects.NODE_EVENTS)
        assert fleet.invariants.violation is None
        fleet.simulation.server.close()
        events = [node_codec.decode(each.data) for each in found]
        lost = [each.node for each in events if isinstance(each, Lost)]
        returned = [each.node for each in events if isinstance(each, Returned)]
        assert set(lost) <= {node}
        return lost, returned

    lost, returned = virtual_time.run(play)
    assert len(lost) == one_is_silent
    assert returned == lost
