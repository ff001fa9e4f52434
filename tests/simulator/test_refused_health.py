"""Operators know within seconds that verdicts cannot be stored."""

import pytest

from schemas.alert_records import Alert
from services.simulator.engine.fault_kinds import BROKER, InjectedFault
from services.simulator.engine.simulated_alerts import SimulatedOperators
from services.simulator.engine.simulation_context import CURRENT_SIMULATION
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from tests.simulator.test_refused_writes import SHAPE
from tests.support.campaigns import run_campaign

ALERTED_WITHIN_SECONDS = 15.0


@pytest.mark.parametrize("stream", ["KV_HEALTH", "KV_NODES"])
def test_a_refused_verdict_is_alerted_within_15_seconds(
    stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says that it stores nothing: a second such answer is enough."""
    alerted: list[float] = []
    receive = SimulatedOperators.receive

    def noting(self: SimulatedOperators, alert: Alert) -> None:
        if alert.key == f"store-unwritable/stream {stream}" and not alert.resolved:
            alerted.append(CURRENT_SIMULATION.get().now())
        receive(self, alert)

    monkeypatch.setattr(SimulatedOperators, "receive", noting)
    steps = (
        CampaignStep(
            10.0, InjectedFault(kind="refused_writes", target=BROKER, stream=stream, seconds=120.0)
        ),
        CampaignStep(10.0, InjectedFault(kind="xid_error", fixed_by="replace")),
    )
    found, simulation = run_campaign(f"refused-{stream}", Campaign(SHAPE, steps, 140.0))
    assert (found.violation, found.tail) == ("", ())
    lines = simulation.fleet.simulation.history.tail(10_000, ())
    [began] = [float(line.split()[0]) for line in lines if "injected: refused_writes" in line]
    assert alerted
    assert alerted[0] - began <= ALERTED_WITHIN_SECONDS
