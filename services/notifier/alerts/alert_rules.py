"""Which facts people are told of, how urgently, and in which words. Pure.

Every alert has a key: the same trouble has the same key, so that its end (`info`) can be matched
with its beginning, and a repetition is known as one.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from schemas.enums import PROGRAM_CODES
from schemas.fleet_events import ConsumerLag, UnknownError
from schemas.messages import Message
from schemas.node_events import Lost, Verdict
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

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing that a person should know."""

    severity: Severity
    title: str
    text: str
    """What happened, why, and what happens next or is asked for; whole sentences."""
    pool: str
    """Empty where it is about the fleet's own services."""
    node: str = ""
    key: str
    """The same for the same trouble; a channel folds by it."""
    event: str
    """Id of the fact behind it."""
    time: datetime


def alert_of(event: Message) -> Alert | None:  # noqa: C901, PLR0912 - one case a fact
    """What people are told of this fact; None where it is no news to them."""
    match event:
        case Verdict():
            return _verdict(event)
        case Lost():
            return Alert(
                severity="critical",
                title=f"{event.node} is lost",
                text="Its heartbeat ran out. It is rebooted or replaced if it stays silent.",
                pool=event.pool,
                node=event.node,
                key=f"lost/{event.pool}/{event.node}",
                event=event.id,
                time=event.time,
            )
        case NodeReplaced():
            return Alert(
                severity="info",
                title=f"{event.old_node} was replaced by {event.new_node}",
                text=f"It took {event.duration_seconds:.1f} s.{_because(event.reason)}",
                pool=event.pool,
                node=event.old_node,
                key=_health_key(event.pool, event.old_node),
                event=event.id,
                time=event.time,
            )
        case BreakerOpened() | BreakerClosed():
            return _breaker(event)
        case ConsumerLag():
            return _lag(event)
        case UnknownError():
            return _unknown_error(event)
        case Incident():
            return _incident(event)
        case SagaFailed() | SagaIsStuck():
            return _saga(event)
        case SagaOverdue():
            return _overdue(event)
        case OperatorNeeded():
            return _person(event)
        case NodeRefused():
            return _refusal(event)
        case InstanceLeaked():
            return _leak(event)
        case LaunchRefused():
            return _refused_launch(event)
        case _:
            return None


def _verdict(event: Verdict) -> Alert | None:
    severity: Severity
    match event.status:
        case "unhealthy":
            severity, then = "critical", _next(event.action)
        case "degraded":
            severity, then = "warning", _next(event.action)
        case "healthy" if event.was in ("degraded", "unhealthy"):
            severity, then = "info", ""
        case _:
            return None
    gpu = f" GPU {event.gpu_index}." if event.gpu_index >= 0 else ""
    rule = f" Rule: {event.rule}." if event.rule else ""
    return Alert(
        severity=severity,
        title=f"{event.node} is {event.status}",
        text=f"It was {event.was}.{gpu}{rule}{_because(event.reason)}{then}",
        pool=event.pool,
        node=event.node,
        key=_health_key(event.pool, event.node),
        event=event.id,
        time=event.time,
    )


def _breaker(event: BreakerOpened | BreakerClosed) -> Alert | None:
    if event.breaker_cause == "wave" and not event.by:
        # The incident says so already: one trouble, one alert.
        return None
    by = f" by {event.by}" if event.by else ""
    count = f"{event.unavailable} nodes are out of service, {event.limit} may be."
    if isinstance(event, BreakerOpened):
        waiting = f" Waiting: {', '.join(event.waiting)}." if event.waiting else ""
        severity: Severity = "warning" if event.by else "critical"
        cause = OPENED.get(event.breaker_cause, event.breaker_cause)
        title = f"{event.pool}: the breaker is open{by}: {cause}"
        text = f"Sick nodes are not repaired until it closes. {count}{waiting}"
    else:
        severity = "info"
        title = f"{event.pool}: the breaker is closed{by}, repair goes on"
        text = count
    text += _because(event.reason)
    return Alert(
        severity=severity,
        title=title,
        text=text,
        pool=event.pool,
        key=f"breaker/{event.pool}",
        event=event.id,
        time=event.time,
    )


OPENED: Final[dict[str, str]] = {
    "level": "as many nodes are out of service as may be",
    "rate": "as many repairs were begun as may be",
    "fleet-level": "as many nodes of the fleet are out of service as may be",
    "fleet-rate": "as many repairs were begun in the fleet as may be",
    "reset-rate": "as many GPU resets and reboots were begun as may be",
    "fleet-reset-rate": "as many GPU resets and reboots were begun in the fleet as may be",
    "launches-fail": "new nodes do not come up",
    "probe-failed": "the repair that was tried failed",
    "operator": "somebody asked for it",
}
"""Why, for a title."""


def _incident(event: Incident) -> Alert:
    what = f"{event.kind} {event.code}".strip() if event.code else event.kind
    if event.scope != "pool":
        what = "trouble"
    named = f" Among them: {', '.join(event.named)}." if event.named else ""
    opened = event.status == "opened"
    where = f" of {event.scope} {event.within}" if event.within else ""
    alone = f" They are not told one by one: navarch list --pool {event.pool}." if opened else ""
    # A program that fails is its owner's affair; what fails otherwise is the operator's.
    program = event.scope == "job" and event.kind == "xid" and event.code in PROGRAM_CODES
    grave: Severity = "warning" if program else "critical"
    return Alert(
        severity=grave if opened else "info",
        title=(
            f"{event.pool}: {event.nodes} nodes{where} have {what} at once"
            if opened
            else f"{event.pool}: the incident of {what}{where} is closed"
        ),
        text=f"{_because(event.reason).strip()}{named}{alone}",
        pool=event.pool,
        key=f"incident/{event.pool}/{event.incident}",
        event=event.id,
        time=event.time,
    )


def _lag(event: ConsumerLag) -> Alert:
    lagging = event.status == "lagging"
    title = "does not keep up" if lagging else "keeps up again"
    then = " Is its service running, and is one replica enough?" if lagging else ""
    return Alert(
        severity="critical" if lagging else "info",
        title=f"{event.durable} {title} with {event.stream}",
        text=f"{_because(event.reason).strip()}{then}",
        pool="",
        key=f"lag/{event.durable}",
        event=event.id,
        time=event.time,
    )


def _unknown_error(event: UnknownError) -> Alert:
    kind = event.treated_as
    then = "tried again" if kind == "TRANSIENT" else f"taken for {kind}, by its status alone"
    return Alert(
        severity="warning",
        title=f"{event.provider} answered {event.call} with an error that is not known here",
        text=(
            f"Code {event.code}: {event.message.rstrip('.')}. It is {then}. If it does not pass, "
            "act on what it says; and report the code, so that it gets a row of its own. This "
            "code is not told again."
        ),
        pool="",
        key=f"unknown-error/{event.provider}/{event.code}",
        event=event.id,
        time=event.time,
    )


def _saga(event: SagaFailed | SagaIsStuck) -> Alert:
    if isinstance(event, SagaIsStuck):
        severity: Severity = "critical"
        title = f"{event.saga} is stuck: a person is needed"
        then = f" What to do: {event.remedy}." if event.remedy else ""
        node = ""
    else:
        severity, node = "warning", event.node or event.new_node
        title = f"{event.saga} failed and was undone"
        then = f" The next try is in {event.retry_seconds:.0f} s." if event.retry_seconds else ""
    return Alert(
        severity=severity,
        title=title,
        text=f"Step {event.step} failed.{_because(event.reason)}{then}",
        pool=event.pool,
        node=node,
        key=f"saga/{event.saga}",
        event=event.id,
        time=event.time,
    )


def _overdue(event: SagaOverdue) -> Alert:
    return Alert(
        severity="warning",
        title=f"{event.saga} still waits at {event.step}",
        text=f"{event.reason[:1].upper()}{event.reason[1:]}. What to do: {event.remedy}.",
        pool=event.pool,
        node=event.node,
        key=f"saga/{event.saga}",
        event=event.id,
        time=event.time,
    )


def _person(event: OperatorNeeded) -> Alert:
    state = "It is cordoned until then." if event.cordoned else "It stays in service until then."
    return Alert(
        severity="critical",
        title=f"{event.node} needs a person",
        text=f"{_because(event.reason).strip()} {event.remedy.rstrip('.')}. {state}",
        pool=event.pool,
        node=event.node,
        key=f"person/{event.pool}/{event.node}",
        event=event.id,
        time=event.time,
    )


def _refusal(event: NodeRefused) -> Alert | None:
    if not event.remedy:
        # That its saga was undone is told already.
        return None
    return Alert(
        severity="critical",
        title=f"{event.pool}: {event.attempt} new nodes in a row were refused",
        text=f"The last was {event.node}.{_because(event.reason)} What to do: {event.remedy}.",
        pool=event.pool,
        node=event.node,
        key=f"admission/{event.pool}",
        event=event.id,
        time=event.time,
    )


def _refused_launch(event: LaunchRefused) -> Alert:
    return Alert(
        severity="warning",
        title=f"{event.pool}: a launch was refused ({event.refusal})",
        text=f"{event.node} was not launched.{_because(event.reason)} What to do: {event.remedy}.",
        pool=event.pool,
        node=event.node,
        key=f"launch/{event.pool}/{event.refusal}",
        event=event.id,
        time=event.time,
    )


def _leak(event: InstanceLeaked) -> Alert:
    named = f" ({event.provider_id})" if event.provider_id else ""
    cost = f" It costs ${event.dollars_per_hour:.2f} an hour." if event.dollars_per_hour else ""
    return Alert(
        severity="critical",
        title=f"{event.instance} should be gone and still stands",
        text=f"At {event.provider}{named}.{_because(event.reason)}{cost} Removing it is retried.",
        pool=event.pool,
        node=event.instance,
        key=f"leak/{event.provider}/{event.instance}",
        event=event.id,
        time=event.time,
    )


def _health_key(pool: str, node: str) -> str:
    return f"health/{pool}/{node}"


def _because(reason: str) -> str:
    return f" Reason: {reason.strip().rstrip('.')}." if reason.strip() else ""


def _next(action: str) -> str:
    words = {
        "replace": " It calls for a replacement.",
        "reset_gpu": " It calls for a reset of the GPU.",
        "reboot": " It calls for a reboot.",
        "restart_app": " The application is to be restarted.",
        "inspect": " A person should look at it.",
    }
    return words.get(action, "")
