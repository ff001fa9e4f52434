"""A notice that is withdrawn while NODES takes no writes: what it began is taken back."""

from dataclasses import replace
from typing import Literal

import pytest

from services.runtime.logs import silenced
from services.simulator.engine import virtual_time
from services.simulator.engine.fault_kinds import BROKER, WORKLOAD, InjectedFault
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from services.simulator.inputs.fuzz.fuzz_simulation import FuzzSimulation, SeedResult
from tests.simulator.test_refused_writes import SHAPE

OUTAGE_SECONDS = 120.0


@pytest.mark.parametrize("order", ["terminate_first", "provision_first"])
def test_a_node_whose_notice_is_withdrawn_is_kept(
    order: Literal["terminate_first", "provision_first"],
) -> None:
    """Its work does not leave, so that the notice is withdrawn first."""
    steps = (
        CampaignStep(9.0, InjectedFault(kind="endless_drain", target=WORKLOAD, seconds=20.0)),
        CampaignStep(10.0, InjectedFault(kind="preemption", seconds=12.0), "withdrawn"),
        CampaignStep(
            12.0,
            InjectedFault(
                kind="refused_writes", target=BROKER, stream="KV_NODES", seconds=OUTAGE_SECONDS
            ),
        ),
    )
    began: list[FuzzSimulation] = []

    async def simulate() -> SeedResult:
        shape = replace(SHAPE, order=order, nodes=3)
        campaign = Campaign(shape, steps, OUTAGE_SECONDS + 30.0)
        began.append(FuzzSimulation("late-withdrawal", campaign))
        return await began[0].run()

    with silenced():
        found = virtual_time.run(simulate)
    assert (found.violation, found.tail) == ("", ())
    logs = began[0].fleet.simulation.server.state.streams["SAGAS"].messages.values()
    entries = [tuple(each.subject.split(".")[3:]) for each in logs]
    begun = [saga for saga, *entry in entries if entry == ["saga", "started"]]
    assert len([saga for saga in begun if saga.startswith("replace-")]) == 1
    assert not [saga for saga, *entry in entries if entry == ["terminate", "started"]]
