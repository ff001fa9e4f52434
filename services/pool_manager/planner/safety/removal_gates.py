"""Decides whether a machine may be removed that no saga is about and that seems to serve nothing.

It is no node in service, so neither `max_unavailable` nor a drain holds it. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.proposed_removals import RemovalAnswer, RemovalProposal
from services.pool_manager.planner.node_counts import busy

GRANTED_MAX: Final = 20
"""Removals of one pool within the window: a defect of what proposes them removes no more."""
WINDOW: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalFacts:
    """The gates look at these values when a removal is proposed."""

    pool: PoolRecord | None
    removed: bool = False
    """An operator has removed the pool, with everything that it launched."""
    node: NodeRecord | None = None
    """Of the machine's name."""
    unread: str = ""
    """Why something could not be read, which counts as work."""
    beats: bool = False
    """An agent beats under its name."""
    registered_at: datetime | None = None
    """When an agent last registered under its name."""
    busy: bool = False
    """A workload system knows work under its name."""
    granted: Sequence[datetime] = ()
    """When removals of the pool were last granted."""
    now: datetime


def decide_removal(proposal: RemovalProposal, facts: ProposalFacts) -> RemovalAnswer:
    """Return what holds a removal back, or that nothing does."""
    if facts.unread:
        return RemovalAnswer(gate="unread", reason=facts.unread)
    if facts.pool is None and not facts.removed:
        why = f"there is no pool {proposal.pool}: an operator's command removes it"
        return RemovalAnswer(gate="no-pool", reason=why)
    if facts.pool is not None and facts.pool.spec.mode == "observe":
        return RemovalAnswer(gate="observe", reason="its pool is in observe mode")
    if facts.pool is not None and facts.pool.breaker.state == "open":
        why = f"the breaker of its pool is open: {facts.pool.breaker.reason}"
        return RemovalAnswer(gate="breaker", reason=why)
    if why := why_occupied(proposal, facts):
        return RemovalAnswer(gate="occupied", reason=why)
    recent = [each for each in facts.granted if each > facts.now - WINDOW]
    if len(recent) >= GRANTED_MAX:
        minutes = WINDOW.total_seconds() / 60
        why = f"{len(recent)} machines of its pool were removed within {minutes:.0f} minutes"
        return RemovalAnswer(gate="rate", reason=why)
    return RemovalAnswer()


def why_occupied(proposal: RemovalProposal, facts: ProposalFacts) -> str:
    """Return why work may be on a machine; empty: none can be."""
    name, node = proposal.node, facts.node
    if (facts.pool is not None and name in busy(facts.pool)) or (node is not None and node.saga):
        return f"a saga about {name} has not ended: `navarch saga list` shows it"
    lives = node is not None and node.state != "terminated"
    if proposal.beside:
        return "" if lives else f"{name} is not in service, and another machine has its name"
    if lives:
        return f"{name} is in service, and which machine serves is not known"
    if facts.beats:
        return f"an agent beats as {name}"
    ended = node.changed_at if node is not None else None
    since = max((each for each in (proposal.created_at, ended) if each is not None), default=None)
    if facts.registered_at is not None and (since is None or facts.registered_at > since):
        return f"an agent registered as {name} at {facts.registered_at:%Y-%m-%d %H:%M:%S}Z"
    return f"a workload system has work on {name}" if facts.busy else ""
