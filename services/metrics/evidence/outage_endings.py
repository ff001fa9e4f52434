"""How a node's outage ended, decided from the event that ended it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas import evidence_bundles as e
from schemas import node_events as n
from schemas import pool_events as p
from schemas import saga_log_entries as s
from schemas.fault_signature import RACK
from schemas.messages import Message
from services.bus.port import Stored
from services.metrics.evidence.node_history import NodeHistory
from services.metrics.evidence.outages import Outage

IN_SERVICE_STEPS: Final = frozenset({"promote", "admit"})
"""Steps of a replacement that put a node into service."""
OUTCOMES: Final[Mapping[str, e.Outcome]] = {"reset-gpu": "reset", "reboot": "rebooted"}
"""Kind of saga -> the outcome if it returns the node to service."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an outage ended."""

    outage: Outage
    outcome: e.Outcome
    saga: str = ""
    new_node: str = ""
    restored_at: datetime | None = None


def outage_ending(history: NodeHistory, event: Message, at: datetime) -> Ending | None:
    """The ending that an event, stored `at`, gives to an outage; None if none has ended."""
    messages = history.messages()
    match event:
        case p.NodeReplaced(saga=saga, new_node=new, promoted=spare):
            outage = history.last_outage() or Outage(since=at, moment=at)
            restored = _in_service_at(messages, saga) or at
            return Ending(outage, "replaced", saga, spare or new, max(restored, outage.since))
        case n.Uncordoned(id=id_, saga=saga):
            ended = _ended_by(history, id_)
            started = _saga_start(messages, saga)
            outcome = OUTCOMES.get(started.kind, "uncordoned") if started else "uncordoned"
            return Ending(ended, outcome, saga, "", at) if ended else None
        case n.Terminated(id=id_, saga=saga):
            ended = _ended_by(history, id_)
            started = _saga_start(messages, saga)
            # The end of a replacement, or its failure, has an event of its own, unless it left
            # with its rack; the removal of a healthy node is no outage.
            kind = started.kind if started is not None else ""
            with_rack = started is not None and started.params.fault_signature == RACK
            removed = kind == "scale-down" or with_rack
            surplus = removed and ended is not None and not _had_fault(ended)
            if ended is None or (kind == "replace" and not with_rack) or surplus:
                return None
            return Ending(ended, "removed", saga, "", at)
        case p.SagaFailed(saga=saga) | p.SagaCancelled(saga=saga):
            ended = _ended_by(history, f"terminated-{saga}")
            if ended is None:
                return None
            started, restored_at = _saga_start(messages, saga), _in_service_at(messages, saga)
            if restored_at is None or started is None or not started.params.promotes:
                return Ending(ended, "removed", saga, "", at)
            # A spare replaced it; only the provisioning of the next spare failed.
            spare = started.params.promotes
            return Ending(ended, "replaced", saga, spare, max(restored_at, ended.since))
        case _:
            return None


def _in_service_at(messages: Iterable[tuple[Stored, Message]], saga: str) -> datetime | None:
    """When the first node that a saga brings, new or spare, was in service."""
    times = (
        each.time
        for each, message in messages
        if isinstance(message, s.StepSucceeded)
        and message.saga == saga
        and message.step in IN_SERVICE_STEPS
    )
    return min(times, default=None)


def _saga_start(messages: Iterable[tuple[Stored, Message]], saga: str) -> s.SagaStarted | None:
    """The first entry of a saga's log; None if it is not stored."""
    started = (message for _, message in messages if isinstance(message, s.SagaStarted))
    return next((each for each in started if each.saga == saga), None)


def _ended_by(history: NodeHistory, event: str) -> Outage | None:
    return next((each for each in history.outages() if each.end == event), None)


def open_ending(history: NodeHistory) -> Ending | None:
    """The node's open outage as of now; None if there is none."""
    outage = history.open_outage()
    return Ending(outage, "open") if outage else None


def recovered_ending(capture: e.EvidenceCapture) -> Ending:
    """The end of a captured outage from which the node recovered without a remediation."""
    since = capture.unhealthy_at or capture.moment
    return Ending(Outage(since=since, moment=capture.moment), "recovered")


def is_stored(ending: Ending) -> bool:
    """Whether a bundle is stored; not if an operator only cordoned and uncordoned the node."""
    return ending.outcome == "replaced" or _had_fault(ending.outage)


def _had_fault(outage: Outage) -> bool:
    return outage.fault_signature != e.OPERATOR_REQUEST
