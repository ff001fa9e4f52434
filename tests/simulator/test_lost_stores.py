"""Streams and durables that are destroyed one after the other: the fleet converges.

No healthy node is terminated for it, and the nodes that break meanwhile are replaced.
"""

from dataclasses import replace

import pytest

from schemas.topology import DURABLES, NODES, SAGAS
from services.runtime.logs import silenced
from services.simulator.engine.fault_kinds import BROKER, STORE_LOSSES, InjectedFault, StoreLoss
from services.simulator.inputs.fuzz.campaign_steps import Campaign, CampaignStep
from services.simulator.inputs.fuzz.fuzz_campaign import FATAL
from services.simulator.inputs.fuzz.fuzz_simulation import simulate
from services.simulator.inputs.fuzz.rare_steps import LOST
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
        broken = replace(BROKEN, xid_code=FATAL[number % len(FATAL)])  # else it is a slow wave
        steps.append(CampaignStep(at + (BACK_SECONDS - 1, 3.0)[number % 2], broken))
    ordered = tuple(sorted(steps, key=lambda each: each.at))
    with silenced():
        found = simulate(kind, Campaign(SHAPE, ordered, ordered[-1].at + 60.0))
    assert (found.violation, found.tail) == ("", ())
    assert found.made >= SHAPE.nodes + len(places) // 2


@pytest.mark.slow
def test_sequences_of_a_lost_log_are_no_sign_of_a_restored_backup() -> None:
    """SAGAS is created again, and NODES is lost before the new log is as long as the old one."""

    def lost(stream: str, at: float) -> CampaignStep:
        fault = InjectedFault(kind="stream_deleted", target=BROKER, stream=stream, seconds=5.0)
        return CampaignStep(at, fault)

    steps = (
        *(CampaignStep(20.0 + 40.0 * number, BROKEN) for number in range(3)),
        lost(SAGAS.name, 160.0),
        lost(f"KV_{NODES.name}", 220.0),
    )
    with silenced():
        found = simulate("lost-log", Campaign(SHAPE, steps, 300.0))
    assert (found.violation, found.tail) == ("", ())


@pytest.mark.slow
def test_an_unknown_node_that_fell_silent_leaves_no_health_record() -> None:
    """A restored backup does not have the successor, whose agent reports a fault and then ends."""

    def once(number: int) -> InjectedFault:
        return InjectedFault(kind="xid_error", xid_code=number, momentary=True)

    steps = (
        CampaignStep(40.0, InjectedFault(kind="store_restored", target=BROKER, seconds=14.8)),
        CampaignStep(42.2, BROKEN),
        CampaignStep(60.6, once(13)),
        CampaignStep(61.3, once(63)),
        CampaignStep(71.5, InjectedFault(kind="deleted")),
    )
    with silenced():
        found = simulate("unknown-0", Campaign(SHAPE, steps, 75.0))
    assert (found.violation, found.tail) == ("", ())


@pytest.mark.slow
def test_a_restored_store_has_the_stream_that_was_deleted_since() -> None:
    """The backup was made before: its records are there again with all others."""
    nodes = f"KV_{NODES.name}"
    deleted = InjectedFault(kind="stream_deleted", target=BROKER, stream=nodes, seconds=20.0)
    steps = (
        CampaignStep(60.0, InjectedFault(kind="store_rolled_back", target=BROKER, seconds=50.0)),
        CampaignStep(80.0, BROKEN),
        CampaignStep(109.0, deleted),  # not created again when the store is set back
    )
    with silenced():
        found = simulate("restored-with-deleted", Campaign(SHAPE, steps, 150.0))
    assert (found.violation, found.tail) == ("", ())
