"""Streams and durables that are destroyed one after the other: the fleet converges.

No healthy node is terminated for it, and the nodes that break meanwhile are replaced.
"""

import pytest

from schemas.topology import DURABLES
from services.runtime.logs import silenced
from services.simulator.engine.fault_kinds import BROKER, STORE_LOSSES, InjectedFault, StoreLoss
from services.simulator.inputs.fuzz.fuzz_campaign import LOST, Campaign, CampaignStep
from services.simulator.inputs.fuzz.fuzz_simulation import simulate
from tests.simulator.test_refused_writes import SHAPE

BETWEEN_SECONDS = 40.0
BACK_SECONDS = 15.0
BROKEN = InjectedFault(kind="xid_error", xid_code=79, fixed_by="replace")
STREAMS_LOST = [(each, "") for each in LOST]
DURABLES_LOST = [
    (each.stream, each.name) for each in DURABLES if not each.name.startswith("metrics")
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(STORE_LOSSES))
def test_the_fleet_converges(kind: StoreLoss) -> None:
    """A node breaks before each loss, by turns long before and just before."""
    places = DURABLES_LOST if kind.startswith("durable") else STREAMS_LOST
    steps = []
    for number, (stream, durable) in enumerate(places):
        at = 40.0 + number * BETWEEN_SECONDS
        lost = InjectedFault(
            kind=kind, target=BROKER, stream=stream, durable=durable, seconds=BACK_SECONDS
        )
        steps.append(CampaignStep(at, lost))
        steps.append(CampaignStep(at + (BACK_SECONDS - 1, 3.0)[number % 2], BROKEN))
    ordered = tuple(sorted(steps, key=lambda each: each.at))
    with silenced():
        found = simulate(kind, Campaign(SHAPE, ordered, ordered[-1].at + 60.0))
    assert (found.violation, found.tail) == ("", ())
    assert found.made >= SHAPE.nodes + len(places) // 2
