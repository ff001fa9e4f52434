"""A notice that is withdrawn while NODES takes no writes: what it began is taken back."""

from dataclasses import replace
from typing import Literal

import pytest

from services.simulator.engine.fault_kinds import BROKER, WORKLOAD, InjectedFault
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from tests.simulator.test_refused_writes import SHAPE
from tests.support.campaigns import run_campaign, saga_entries

OUTAGE_SECONDS = 120.0


@pytest.mark.parametrize("order", ["terminate_first", "provision_first"])
def test_a_node_whose_notice_is_withdrawn_is_kept(
    order: Literal["terminate_first", "provision_first"],
) -> None:
    """A node whose work does not leave before its notice is withdrawn is not terminated."""
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
    shape = replace(SHAPE, order=order, nodes=3)
    campaign = Campaign(shape, steps, OUTAGE_SECONDS + 30.0)
    found, simulation = run_campaign("late-withdrawal", campaign)
    assert (found.violation, found.tail) == ("", ())
    entries = saga_entries(simulation)
    begun = [saga for saga, *entry in entries if entry == ["saga", "started"]]
    assert len([saga for saga in begun if saga.startswith("replace-")]) == 1
    assert not [saga for saga, *entry in entries if entry == ["terminate", "started"]]
