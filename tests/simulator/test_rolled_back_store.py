"""The whole store is restored from a backup while the fleet runs: it converges, and loses no node.

What was launched since the backup has no record. It is left alone as an orphan until an operator
adopts it; none of its names is used a second time.
"""

from dataclasses import replace
from typing import Literal

import pytest

from services.runtime.logs import silenced
from services.simulator.engine.fault_kinds import BROKER, InjectedFault
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep, OperatorAction
from services.simulator.inputs.fuzz.fuzz_simulation import simulate
from tests.simulator.test_refused_writes import SHAPE

BROKEN = InjectedFault(kind="xid_error", xid_code=79, fixed_by="replace")
BACKUP_AT_SECONDS = 10.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "order", "idempotent"),
    [(15.0, "terminate_first", False), (120.0, "provision_first", True)],
)
def test_what_was_replaced_since_the_backup_stays(
    seconds: float, order: Literal["terminate_first", "provision_first"], *, idempotent: bool
) -> None:
    """A node breaks and is replaced, or is being replaced, when the backup is restored."""
    restored = InjectedFault(kind="store_rolled_back", target=BROKER, seconds=seconds)
    steps = (
        CampaignStep(BACKUP_AT_SECONDS, restored),
        CampaignStep(BACKUP_AT_SECONDS + 1.0, BROKEN),
        CampaignStep(BACKUP_AT_SECONDS + 2.0, OperatorAction(verb="scale", nodes=SHAPE.nodes + 1)),
    )
    shape = replace(SHAPE, order=order, idempotent=idempotent)
    with silenced():
        found = simulate("rolled back", Campaign(shape, steps, BACKUP_AT_SECONDS + seconds + 30.0))
    assert (found.violation, found.tail) == ("", ())
