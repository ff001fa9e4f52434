"""Which events alert operators, how urgently, and under which key. Pure.

The text is `services.operator_text.event_text`. A condition and its end have the same key, so that
a channel can match the end (`info`) with the beginning and recognise repetitions.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from schemas import subjects
from schemas.enums import PROGRAM_CODES
from schemas.fleet_events import FACTS as FLEET_FACTS
from schemas.fleet_events import ConsumerLag, ServiceFailure, UnknownError
from schemas.fleet_queries import CurrentFailure
from schemas.messages import Message
from schemas.node_events import Lost, Returned, Terminated, Verdict
from schemas.pool_events import (
    BreakerClosed,
    BreakerOpened,
    Incident,
    InstanceLeaked,
    LaunchRefused,
    NodeRefused,
    NodeReplaced,
    OperatorNeeded,
    SagaFailed,
    SagaIsStuck,
    SagaOverdue,
)
from services.operator_text.event_text import describe

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One notification to operators."""

    severity: Severity
    title: str
    text: str
    """What happened, why, and what to do; whole sentences."""
    pool: str
    """Empty for an alert about the fleet's own services."""
    node: str = ""
    key: str
    """The same for the same condition; channels deduplicate by it."""
    event: str
    """Id of the event behind it."""
    time: datetime
    resolved: bool = False
    """The condition with this key is over."""
    ends: tuple[str, ...] = ()
    """Keys of the alerts that this one ends; it is sent for those alone that were sent."""


def alert_of(event: Message) -> Alert | None:
    """Make the alert for an event; None where operators need no alert."""
    rule = _rule(event)
    if rule is None:
        return None
    severity, key, node = rule
    text = describe(event)
    detail = text.detail.rstrip(".")
    return Alert(
        severity=severity,
        title=f"{text.subject}: {text.title}",
        text=f"{detail[:1].upper()}{detail[1:]}.",
        pool=getattr(event, "pool", ""),
        node=node,
        key=key,
        event=event.id,
        time=event.time,
        ends=ended_keys(event),
    )


def store_alert(failure: CurrentFailure, now: datetime, failing: bool) -> Alert:
    """The alert for a store that refuses what is written, or for the end of that."""
    return Alert(
        severity="critical" if failing else "info",
        title=f"{failure.about}: {'not writable' if failing else 'writable again'}",
        text=f"{failure.reason}. To resolve: {failure.remedy}." if failing else "It stores again.",
        pool="",
        key=f"{failure.failure}/{failure.about}",
        event=f"{failure.failure}-{failure.about}-{now.isoformat()}",
        time=now,
        resolved=not failing,
    )


def _rule(event: Message) -> tuple[Severity, str, str] | None:  # noqa: C901, PLR0912 - one case an event
    """Severity, key and node of the alert for an event."""
    match event:
        case Verdict(pool=pool, node=node):
            severity = _verdict_severity(event)
            return (severity, f"health/{pool}/{node}", node) if severity else None
        case Lost(pool=pool, node=node):
            return "critical", f"lost/{pool}/{node}", node
        case Returned(pool=pool, node=node):
            return "info", f"lost/{pool}/{node}", node
        case NodeReplaced(pool=pool, old_node=node):
            return "info", f"health/{pool}/{node}", node
        case (
            BreakerOpened(breaker_cause="wave", by="") | BreakerClosed(breaker_cause="wave", by="")
        ):
            return None  # the incident alerts already
        case BreakerOpened(pool=pool, by=by):
            return "warning" if by else "critical", f"breaker/{pool}", ""
        case BreakerClosed(pool=pool):
            return "info", f"breaker/{pool}", ""
        case Incident(pool=pool, incident=incident):
            return _incident_severity(event), f"incident/{pool}/{incident}", ""
        case SagaIsStuck(saga=saga):
            return "critical", f"saga/{saga}", ""
        case SagaFailed(saga=saga):
            return "warning", f"saga/{saga}", event.node or event.new_node
        case SagaOverdue(saga=saga, node=node):
            return "warning", f"saga/{saga}", node
        case OperatorNeeded(pool=pool, node=node):
            return "critical", f"operator/{pool}/{node}", node
        case NodeRefused(remedy=""):
            return None  # the failed saga alerts already
        case NodeRefused(pool=pool, node=node):
            return "critical", f"admission/{pool}", node
        case InstanceLeaked(provider=provider, instance=instance):
            return "critical", f"leak/{provider}/{instance}", instance
        case LaunchRefused(pool=pool, node=node, refusal=refusal):
            return "warning", f"launch/{pool}/{refusal}", node
        case ConsumerLag(durable=durable, status=status):
            return "critical" if status == "lagging" else "info", f"lag/{durable}", ""
        case UnknownError(provider=provider, code=code):
            return "warning", f"unknown-error/{provider}/{code}", ""
        case ServiceFailure(failure="store-unwritable"):
            return None  # alerted without the store
        case ServiceFailure(failure=failure, about=about, status=status):
            return "critical" if status == "failing" else "info", f"{failure}/{about}", ""
        case _:
            return None


def ended_keys(event: Message) -> tuple[str, ...]:
    """The keys of the alerts that an event ends."""
    match event:
        case Verdict(status="healthy", pool=pool, node=node):
            return f"health/{pool}/{node}", f"operator/{pool}/{node}"
        case Returned(pool=pool, node=node):
            return f"lost/{pool}/{node}", f"operator/{pool}/{node}"
        case Terminated(pool=pool, node=node):
            return _of_node(pool, node)
        case NodeReplaced(pool=pool, old_node=node, saga=saga):
            return *_of_node(pool, node), f"saga/{saga}"
        case BreakerClosed(pool=pool):
            return (f"breaker/{pool}",)
        case Incident(status="closed", pool=pool, incident=incident):
            return (f"incident/{pool}/{incident}",)
        case ConsumerLag(status="caught-up", durable=durable):
            return (f"lag/{durable}",)
        case ServiceFailure(status="recovered", failure=failure, about=about):
            return (f"{failure}/{about}",)
        case _:
            return ()


def _of_node(pool: str, node: str) -> tuple[str, ...]:
    return tuple(f"{kind}/{pool}/{node}" for kind in ("health", "lost", "operator"))


def ending_subjects(event: Message) -> tuple[str, ...]:
    """Where an event that ends the alert about this one is published; none: nothing ends it."""
    match event:
        case Verdict(pool=pool, node=node):
            facts: tuple[str, ...] = ("verdict", "terminated")
        case Lost(pool=pool, node=node):
            facts = ("returned", "terminated")
        case OperatorNeeded(pool=pool, node=node):
            facts = ("verdict", "returned", "terminated")
        case BreakerOpened(pool=pool):
            return (subjects.pool_event(pool, "breaker-closed"),)
        case Incident(pool=pool):
            return (subjects.pool_event(pool, "incident"),)
        case SagaIsStuck(pool=pool) | SagaOverdue(pool=pool):
            return (subjects.pool_event(pool, "node-replaced"),)
        case ConsumerLag() | ServiceFailure():
            return (subjects.fleet_event(FLEET_FACTS[type(event)]),)
        case _:
            return ()
    return tuple(subjects.node_event(pool, node, fact) for fact in facts)


def _verdict_severity(event: Verdict) -> Severity | None:
    match event.status:
        case "unhealthy":
            return "critical"
        case "degraded":
            return "warning"
        case "healthy":
            return "info"  # the end of what was sent, if anything was
        case _:
            return None


def _incident_severity(event: Incident) -> Severity:
    if event.status == "closed":
        return "info"
    # A failing program is its owner's concern; any other common fault is the operator's.
    program = event.scope == "job" and event.kind == "xid" and event.code in PROGRAM_CODES
    return "warning" if program else "critical"
