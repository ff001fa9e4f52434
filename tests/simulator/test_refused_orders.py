"""A workload system that refuses cordons for minutes."""

from services.simulator.engine.fault_kinds import WORKLOAD, InjectedFault
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from tests.simulator.test_refused_writes import SHAPE
from tests.support.campaigns import run_campaign, saga_entries

REFUSED_SECONDS = 200.0


def test_a_gone_node_is_replaced_all_the_same_and_delays_no_drain_afterwards() -> None:
    """A restart is announced meanwhile, and its drain is due when the orders are accepted again."""
    steps = (
        CampaignStep(
            10.0, InjectedFault(kind="refused_orders", target=WORKLOAD, seconds=REFUSED_SECONDS)
        ),
        CampaignStep(15.0, InjectedFault(kind="deleted")),
        CampaignStep(100.0, InjectedFault(kind="announced_redeploy", seconds=220.0)),
    )
    campaign = Campaign(SHAPE, steps, REFUSED_SECONDS + 20.0)
    found, simulation = run_campaign("refused-orders", campaign)
    assert (found.violation, found.tail) == ("", ())
    entries = saga_entries(simulation)
    begun = [saga for saga, *entry in entries if entry == ["saga", "started"]]
    refused = {saga for saga, *entry in entries if entry == ["cordon", "failed"]}
    done = {saga for saga, *entry in entries if entry == ["saga", "done"]}
    assert len([saga for saga in refused if saga.startswith("replace-")]) <= REFUSED_SECONDS / 15.0
    assert len([saga for saga in refused & done if saga.startswith("replace-")]) == 1
    assert [saga for saga in begun if saga.startswith("drain-")]
