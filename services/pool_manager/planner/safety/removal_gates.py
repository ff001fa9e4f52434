"""Decides whether a machine may be removed that no saga is about and that seems to serve nothing.

It is no node in service, so neither `max_unavailable` nor a drain holds it. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from schemas.machine_identity import MachineIdentity
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
    stopped: str = ""
    """What stops removals in its pool, or at its provider."""
    removed: bool = False
    """An operator has removed the pool, with everything that it launched."""
    node: NodeRecord | None = None
    """Of the machine's name."""
    nodes: Sequence[NodeRecord] = ()
    """Every node, with the machines that have registered under its name."""
    holders: Sequence[str] = ()
    """Running instances that have the machine's ID by their records."""
    unread: str = ""
    """Why something could not be read, which counts as work."""
    beats: bool = False
    """An agent beats under its name."""
    beating_boot: str = ""
    """The boot that it beats from, as far as it says."""
    registered_at: datetime | None = None
    """When an agent last registered under its name."""
    busy: bool = False
    """A workload system knows work under its name."""
    fleet_began: datetime | None = None
    """A machine of this fleet is no older, whether or not its provider reports its age."""
    records_since: datetime | None = None
    """Since when the events, nodes, instances and sagas are whole; None: not known."""
    now: datetime


def decide_removal(
    proposal: RemovalProposal, facts: ProposalFacts, granted: Mapping[str, datetime]
) -> RemovalAnswer:
    """Return what holds a removal back, or that nothing does.

    `granted`: the removals of its pool that were granted lately.
    """
    if facts.stopped:
        return RemovalAnswer(gate="stop", reason=facts.stopped)
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
    if not facts.removed and (why := why_unproven(proposal, facts)):
        return RemovalAnswer(gate="records", reason=why)
    others = with_grant(granted, proposal, facts.now).keys() - {_granted_key(proposal)}
    if len(others) >= GRANTED_MAX:
        minutes = WINDOW.total_seconds() / 60
        why = f"{len(others)} machines of its pool were removed within {minutes:.0f} minutes"
        return RemovalAnswer(gate="rate", reason=why)
    return RemovalAnswer()


def with_grant(
    granted: Mapping[str, datetime], proposal: RemovalProposal, now: datetime
) -> dict[str, datetime]:
    """Return the grants within the window, with this one; the same machine counts once."""
    recent = {key: at for key, at in granted.items() if at > now - WINDOW}
    return recent | {_granted_key(proposal): now}


def _granted_key(proposal: RemovalProposal) -> str:
    return f"{proposal.provider}/{proposal.provider_id}"


def why_unproven(proposal: RemovalProposal, facts: ProposalFacts) -> str:
    """Return why the records prove nothing about a machine, which may be older than they are."""
    made, since = proposal.created_at or facts.fleet_began, facts.records_since
    if made is None or since is None:
        return "it is not known since when the records of this fleet are whole"
    if since <= made:
        return ""
    return (
        f"records were lost, or restored, at {since:%Y-%m-%d %H:%M:%S}Z, and it was made at "
        f"{made:%Y-%m-%d %H:%M:%S}Z"
    )


def why_occupied(proposal: RemovalProposal, facts: ProposalFacts) -> str:
    """Return why work may be on a machine; empty: none can be."""
    name, node = proposal.node, facts.node
    if (facts.pool is not None and name in busy(facts.pool)) or (node is not None and node.saga):
        return f"a saga about {name} has not ended: `navarch saga list` shows it"
    if facts.holders:
        return f"it is the instance of {', '.join(facts.holders)} by the records"
    if heard := _why_heard(proposal, facts.nodes):
        return heard
    lives = node is not None and node.state != "terminated"
    if proposal.beside and node is not None and lives:
        known = node.identity.machine.boot_id if node.identity is not None else ""
        other = known and facts.beats and facts.beating_boot not in ("", known)
        return f"an agent beats as {name} from another boot than the node's" if other else ""
    if proposal.beside:
        return f"{name} is not in service, and another machine has its name"
    if lives:
        return f"{name} is in service, and which machine serves is not known"
    if facts.beats:
        return f"an agent beats as {name}"
    ended = node.changed_at if node is not None else None
    since = max((each for each in (proposal.created_at, ended) if each is not None), default=None)
    if facts.registered_at is not None and (since is None or facts.registered_at > since):
        return f"an agent registered as {name} at {facts.registered_at:%Y-%m-%d %H:%M:%S}Z"
    return f"a workload system has work on {name}" if facts.busy else ""


def _why_heard(proposal: RemovalProposal, nodes: Sequence[NodeRecord]) -> str:
    """Return as which node an agent has registered from a machine since it was made."""
    for node in nodes:
        known = node.identity
        if known is None:
            continue
        for each in (known.machine, *known.earlier, *known.refused):
            made = proposal.created_at
            if _is_machine(proposal, each) and (made is None or each.heard_at > made):
                at = f"{each.heard_at:%Y-%m-%d %H:%M:%S}Z"
                return f"an agent registered from it as {node.node} at {at}"
    return ""


def _is_machine(proposal: RemovalProposal, heard: MachineIdentity) -> bool:
    """Return whether a registration came from a machine: by its ID, else by its address."""
    if heard.provider_id:
        return heard.provider_id == proposal.provider_id
    return bool(heard.address) and heard.address == proposal.address
