"""Many heartbeats that come late at once are our lag: no node is lost."""

import asyncio
from dataclasses import replace

from schemas import subjects
from schemas.fleet_events import FACTS, ConsumerLag, fleet_codec
from schemas.node_events import Lost, node_codec
from schemas.topology import EVENTS
from services.simulator.engine import virtual_time
from services.simulator.engine.fault_kinds import InjectedFault
from tests.simulator.test_silence_is_confirmed import started
from tests.support.fleet_shapes import SMALL

NODES = 6
LATE_SECONDS = 10.0
"""Their heartbeats, every 3 s, expire after 9 s."""


def test_heartbeats_that_are_late_together_are_no_losses():
    """Each node's next heartbeat is late by a moment; afterwards a single silent node is lost."""

    async def play() -> tuple[list[str], list[str]]:
        simulation, _ = await started(replace(SMALL, nodes=NODES))
        fleet = simulation.fleet
        for machine in fleet.machines.serving():
            fleet.faults.inject(
                InjectedFault(kind="hang", target=machine.name, seconds=LATE_SECONDS)
            )
        await asyncio.sleep(120)
        last = fleet.machines.serving()[-1].name
        fleet.faults.inject(InjectedFault(kind="hang", target=last, seconds=20))
        await asyncio.sleep(60)
        bus = fleet.operator.bus
        events = [
            node_codec.decode(each.data)
            for each in await bus.read(EVENTS.name, subjects.NODE_EVENTS)
        ]
        lags = [
            fleet_codec.decode(each.data)
            for each in await bus.read(EVENTS.name, subjects.fleet_event(FACTS[ConsumerLag]))
        ]
        assert fleet.invariants.violation is None
        fleet.simulation.server.close()
        lost = [each.node for each in events if isinstance(each, Lost)]
        assert lost == [last]
        return lost, [each.status for each in lags if isinstance(each, ConsumerLag)]

    assert virtual_time.run(play)[1] == ["lagging", "caught-up"]
