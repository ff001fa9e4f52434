"""The invariants know which drains a provider notice may cut short."""

from datetime import UTC, datetime, timedelta

import pytest

from schemas.node_events import ProviderNotice
from services.simulator.engine.tracked_sagas import AnnouncedNotices

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def announcement(notice: str, deadline: float | None, *, withdrawn: bool = False) -> ProviderNotice:
    """Return the notice about n1 that an agent publishes."""
    at = None if deadline is None else NOW + timedelta(seconds=deadline)
    return ProviderNotice(
        id="x",
        time=NOW,
        pool="training",
        node="n1",
        notice=notice,
        deadline=at,
        withdrawn=withdrawn,
    )


@pytest.mark.parametrize(
    ("events", "at", "may"),
    [
        ((), 100, False),
        (((0, announcement("a", 60)),), 53, False),
        (((0, announcement("a", 60)),), 55, True),
        (((0, announcement("a", None)),), 1, True),
        (((0, announcement("a", 60)), (30, announcement("a", None, withdrawn=True))), 55, False),
        (((0, announcement("a", 60)), (50, announcement("a", None, withdrawn=True))), 55, True),
        (((30, announcement("a", None, withdrawn=True)), (40, announcement("a", 60))), 55, False),
        (
            (
                (0, announcement("a", 60)),
                (5, announcement("b", 60)),
                (30, announcement("a", None, withdrawn=True)),
            ),
            55,
            True,
        ),
    ],
)
def test_a_drain_is_cut_only_for_a_notice_in_force(events, at, may):
    """A drain is cut only close to the deadline; a withdrawal takes seconds to reach replicas."""
    announced = AnnouncedNotices()
    for seconds, event in events:
        announced.add(event, NOW + timedelta(seconds=seconds))
    assert may == announced.takes("n1", NOW + timedelta(seconds=at))
