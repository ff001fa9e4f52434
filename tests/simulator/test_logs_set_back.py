"""SAGAS alone is set back below the end of a saga: what has ended does nothing again."""

from dataclasses import replace

import pytest

from services.runtime.logs import silenced
from services.simulator.engine.fault_kinds import BROKER, InjectedFault, StoreLoss
from services.simulator.inputs.fuzz.fuzz_campaign import Campaign, CampaignStep
from services.simulator.inputs.fuzz.fuzz_simulation import simulate
from tests.simulator.test_refused_writes import SHAPE

BROKEN = InjectedFault(kind="xid_error", xid_code=79, fixed_by="reset_gpu")
BROKEN_AT_SECONDS = 10.0
SET_BACK_AT_SECONDS = 60.0
TIMERS_FIRE_SECONDS = 150.0
"""Longer than every timer of the saga: each of them brings its log on."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stream_rolled_back", "stream_shortened"])
@pytest.mark.parametrize("at", [-1.0, 0.3, 2.0, 5.0, 8.0, 12.0, 18.0])
def test_what_has_ended_does_nothing_again(kind: StoreLoss, at: float) -> None:
    """A node is repaired; its log loses all that followed one moment of the repair."""
    begins = BROKEN_AT_SECONDS + at
    lost = InjectedFault(
        kind=kind, target=BROKER, stream="SAGAS", seconds=SET_BACK_AT_SECONDS - begins
    )
    steps = (
        CampaignStep(BROKEN_AT_SECONDS, BROKEN),
        CampaignStep(begins, lost),
        CampaignStep(SET_BACK_AT_SECONDS + 0.5, BROKEN),
    )
    campaign = Campaign(
        replace(SHAPE, remediation="ladder"),
        tuple(sorted(steps, key=lambda each: each.at)),
        SET_BACK_AT_SECONDS + TIMERS_FIRE_SECONDS,
    )
    with silenced():
        found = simulate("set back", campaign)
    assert (found.violation, found.tail) == ("", ())
