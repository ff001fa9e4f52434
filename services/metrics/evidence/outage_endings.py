"""How a node's time out of service ended, by the fact that says so. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas import evidence_bundles as e
from schemas import node_events as n
from schemas import pool_events as p
from schemas import saga_log_entries as s
from schemas.messages import Message
from services.bus.port import Stored
from services.metrics.evidence.node_history import Known, in_order, last_outage, own_outages
from services.metrics.evidence.outages import Outage

FILLING: Final = frozenset({"promote", "admit"})
"""Steps of a replacement that put a node into service."""
MENDED: Final[Mapping[str, e.Outcome]] = {"reset-gpu": "reset", "reboot": "rebooted"}
"""Kind of saga -> how it ended the fault signature of a node that stayed."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a time out of service ended."""

    outage: Outage
    outcome: e.Outcome
    saga: str = ""
    new_node: str = ""
    restored_at: datetime | None = None


def ending(known: Known, trigger: Message, at: datetime) -> Ending | None:
    """What a fact, stored at a moment, ended of a node; None: nothing, or not yet all of it."""
    messages = in_order(known.story)
    match trigger:
        case p.NodeReplaced(saga=saga, new_node=new, promoted=spare):
            outage = last_outage(known) or Outage(since=at, moment=at)
            back = _filled_at(messages, saga) or at
            return Ending(outage, "replaced", saga, spare or new, max(back, outage.since))
        case n.Uncordoned(id=id_, saga=saga):
            closed = _closed_by(known, id_)
            outcome = MENDED.get(_kind(messages, saga), "uncordoned")
            return Ending(closed, outcome, saga, "", at) if closed else None
        case n.Terminated(id=id_, saga=saga):
            closed = _closed_by(known, id_)
            replacing = _kind(messages, saga) == "replace"
            # The replacement is still to come, or fails: either is told by a fact of its own.
            return Ending(closed, "removed", saga, "", at) if closed and not replacing else None
        case p.SagaFailed(saga=saga) | p.SagaCancelled(saga=saga):
            closed = _closed_by(known, f"terminated-{saga}")
            if closed is None:
                return None
            filled, spare = _filled_at(messages, saga), _spare(messages, saga)
            if filled is None or not spare:
                return Ending(closed, "removed", saga, "", at)
            # A spare took its place; what failed is to bring a new spare.
            return Ending(closed, "replaced", saga, spare, max(filled, closed.since))
        case _:
            return None


def _filled_at(messages: Iterable[tuple[Stored, Message]], saga: str) -> datetime | None:
    """When a saga put a node into the place of the old one: the new one, or a spare before it."""
    filled = (
        each.time
        for each, message in messages
        if isinstance(message, s.StepSucceeded) and message.saga == saga and message.step in FILLING
    )
    return min(filled, default=None)


def _spare(messages: Iterable[tuple[Stored, Message]], saga: str) -> str:
    """The spare that a saga puts into service; empty: none."""
    started = (message for _, message in messages if isinstance(message, s.SagaStarted))
    return next((each.params.promotes for each in started if each.saga == saga), "")


def _kind(messages: Iterable[tuple[Stored, Message]], saga: str) -> str:
    """What kind of saga it is; empty: its log is not there."""
    started = (message for _, message in messages if isinstance(message, s.SagaStarted))
    return next((each.kind for each in started if each.saga == saga), "")


def _closed_by(known: Known, event: str) -> Outage | None:
    return next((each for each in own_outages(known) if each.end == event), None)


def still_open(known: Known) -> Ending | None:
    """A fault signature that has not ended: what is known of it up to now; None: there is none."""
    outage = last_outage(known, open_only=True)
    return Ending(outage, "open") if outage else None


def by_itself(kept: e.EvidenceCapture) -> Ending:
    """A fault signature that went away before anything was done."""
    return Ending(Outage(since=kept.unhealthy_at or kept.moment, moment=kept.moment), "recovered")


def keeps(found: Ending) -> bool:
    """Whether evidence is kept: not of what somebody only cordoned and uncordoned by hand."""
    return found.outcome == "replaced" or found.outage.fault_signature != e.OPERATOR_REQUEST
