"""HEALTH is lost while nodes are silent: each of them is published to have returned."""

from dataclasses import replace

import pytest

from schemas.topology import HEALTH
from services.simulator.engine.fault_kinds import BROKER, HALF, InjectedFault
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from tests.simulator.test_refused_writes import SHAPE
from tests.support.campaigns import run_campaign

STOPPED_AT, LOST_AT = 20.0, 35.0
"""When machines stop, and shortly after their silence was published."""


@pytest.mark.parametrize("remediation", ["replace", "ladder"])
@pytest.mark.parametrize("seconds", [0.0, 10.0, 30.0])
def test_every_silent_node_has_its_return_or_its_end(remediation: str, seconds: float) -> None:
    """Agents register before they beat, and NODES takes that for a sign of life."""
    stopped = InjectedFault(kind="stopped", target=HALF, seconds=80.0)
    purged = InjectedFault(kind="stream_purged", target=BROKER, stream=f"KV_{HEALTH.name}")
    steps = (CampaignStep(STOPPED_AT, stopped), CampaignStep(LOST_AT + seconds, purged))
    shape = replace(SHAPE, nodes=5, remediation=remediation, reboots=True)
    found, _ = run_campaign("purged", Campaign(shape, steps, 120.0))
    assert (found.violation, found.tail) == ("", ())
