"""A node that floods the pool-manager hides neither its notice nor its failed boot checks."""

from datetime import UTC, datetime

from schemas.node_events import BootChecked, NodeEvent, ProviderNotice, Registered
from services.pool_manager.node_event_limit import SENDER_LIMIT
from services.runtime.sender_quota import SENDER_MAX, SenderQuota

ABOUT = {"time": datetime(2026, 1, 1, tzinfo=UTC), "pool": "training", "node": "n1"}
FLOOD = 10 * SENDER_MAX


def test_a_preemption_notice_passes_beyond_the_quota() -> None:
    """A notice passes behind ten times the quota of registrations, no two of which are equal."""
    quota = SenderQuota(SENDER_LIMIT, 0.0)
    flood = [
        Registered(id=f"r-{n}", instance="n1", hostname="n1", boot_id=f"b-{n}", gpus=(), **ABOUT)
        for n in range(FLOOD)
    ]
    serious: list[NodeEvent] = [
        BootChecked(id="boot", ok=False, boot_id="b", **ABOUT),
        ProviderNotice(id="notice", notice="i-1", **ABOUT),
    ]
    passed = [each for each in (*flood, *serious) if quota.admit("n1", each)]
    assert passed == [*flood[:SENDER_MAX], *serious]
    assert not quota.admit("n1", serious[1]), "an equal one passed already"
