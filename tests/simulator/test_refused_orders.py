"""A workload system that refuses cordons for minutes."""

from services.runtime.logs import silenced
from services.simulator.engine import virtual_time
from services.simulator.engine.fault_kinds import WORKLOAD, InjectedFault
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from services.simulator.inputs.fuzz.fuzz_simulation import FuzzSimulation, SeedResult
from tests.simulator.test_refused_writes import SHAPE

REFUSED_SECONDS = 200.0


def test_a_gone_node_is_tried_at_an_interval_and_delays_no_drain_afterwards() -> None:
    """A restart is announced meanwhile, and its drain is due when the orders are accepted again."""
    steps = (
        CampaignStep(
            10.0, InjectedFault(kind="refused_orders", target=WORKLOAD, seconds=REFUSED_SECONDS)
        ),
        CampaignStep(15.0, InjectedFault(kind="deleted")),
        CampaignStep(100.0, InjectedFault(kind="announced_redeploy", seconds=220.0)),
    )
    began: list[FuzzSimulation] = []

    async def simulate() -> SeedResult:
        campaign = Campaign(SHAPE, steps, REFUSED_SECONDS + 20.0)
        began.append(FuzzSimulation("refused-orders", campaign))
        return await began[0].run()

    with silenced():
        found = virtual_time.run(simulate)
    assert (found.violation, found.tail) == ("", ())
    logs = began[0].fleet.simulation.server.state.streams["SAGAS"].messages.values()
    sagas = [each.subject.split(".")[3] for each in logs if each.subject.endswith("saga.started")]
    replacements = [each for each in sagas if each.startswith("replace-")]
    assert 1 < len(replacements) <= REFUSED_SECONDS / 15.0
    assert [each for each in sagas if each.startswith("drain-")]
