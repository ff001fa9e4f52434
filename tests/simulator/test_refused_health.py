"""Operators know within seconds that verdicts cannot be stored."""

from dataclasses import replace

import pytest

from schemas.alert_records import Alert
from services.simulator.engine.fault_kinds import BROKER, InjectedFault
from services.simulator.engine.simulated_alerts import SimulatedOperators
from services.simulator.engine.simulation_context import CURRENT_SIMULATION
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from tests.simulator.planted_bugs import BUGS
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


@pytest.mark.parametrize("stream", ["KV_HEALTH", "KV_NODES"])
@pytest.mark.parametrize("forgets", [False, True])
def test_an_alert_ends_though_its_notifier_ended_before_the_store_took_writes(
    stream: str, monkeypatch: pytest.MonkeyPatch, *, forgets: bool
) -> None:
    """The next notifier ends it; one that forgets what an earlier one began is found."""
    if forgets:
        BUGS["store alerts in memory"](monkeypatch)
    steps = (
        CampaignStep(
            10.0, InjectedFault(kind="refused_writes", target=BROKER, stream=stream, seconds=60.0)
        ),
        CampaignStep(10.0, InjectedFault(kind="xid_error", fixed_by="replace")),
        CampaignStep(100.0, InjectedFault(kind="crash", target="notifier", seconds=40.0)),
    )
    found, _ = run_campaign("forgets", Campaign(replace(SHAPE, replicas=1), steps, 200.0))
    alert = f"operators have store-unwritable/stream {stream} open"
    assert (alert in found.violation) == forgets
    assert bool(found.violation) == forgets
