"""Decides which events alert operators, how urgently, under which key, and what ends an alert.

Pure.

The text is `services.operator_text.event_text`. A condition and its end have the same key, so that
a channel can match the end with the beginning and recognise repetitions. Every alert ends: by an
event that `ended_keys` names, or when nothing more was heard of it for `quiet_seconds`.
"""

from datetime import datetime, timedelta
from typing import Final, get_args

from schemas import node_events as n
from schemas import pool_events as p
from schemas import subjects
from schemas.alert_records import Alert, OpenAlertRecord, Severity
from schemas.duration import format_duration
from schemas.enums import PROGRAM_CODES, AlertKind
from schemas.fault_signature import SILENCE, called
from schemas.fleet_events import FACTS as FLEET_FACTS
from schemas.fleet_events import ConsumerLag, FailureKind, ServiceFailure, UnknownError
from schemas.fleet_queries import CurrentFailure
from schemas.messages import Message
from schemas.node_records import NodeRecord
from services.operator_text.event_text import describe

STORE_KEY: Final = "store-unwritable/"
"""Begins the keys of alerts about streams that take no writes."""
HOUR: Final = 3600.0
QUIET_SECONDS: Final[dict[str, float]] = {
    "saga-failed": HOUR,
    "launch": HOUR,
    "admission": 3 * HOUR,
    "machine": 3 * HOUR,
    "unknown-error": 24 * HOUR,
    **{each: 25 * 60.0 for each in get_args(FailureKind) if each != "store-unwritable"},
}
"""Kind of a key -> after so long without another event the alert ends. A failed saga and a refused
launch are tried again within ten minutes, a pool whose new nodes were refused after an hour; a
second machine that is still there is reported once an hour. What
fails in a service is reported each eleven minutes; else the process that reported it has died, and
its successor found nothing."""
QUIET_SECONDS_DEFAULT: Final = 7 * 24 * HOUR
TEXT_CHARS_MAX: Final = 4_000
TITLE_CHARS_MAX: Final = 300
UNKNOWN_AFTER: Final = timedelta(minutes=15)
"""A machine that others made and removed again before it was adopted leaves nothing else."""


def alert_of(event: Message) -> Alert | None:
    """Make the alert that an event begins or repeats; None where operators need none."""
    rule = _rule(event)
    if rule is None:
        return None
    severity, kind, key, node = rule
    return _alert(event, severity, kind, key, node)


def end_of(event: Message, begun: Alert) -> Alert:
    """The end of an alert, by an event that ends it."""
    end = _alert(event, begun.severity, begun.kind, begun.key, begun.node)
    return _resolved(begun, end.title, end.text, end.event, event.time)


def end_by_quiet(begun: Alert, now: datetime) -> Alert:
    """The end of an alert of which nothing more was heard."""
    quiet = format_duration(quiet_seconds(begun.key))
    text = f"Nothing more was reported for {quiet}. If it still holds, `navarch status` shows it."
    return _resolved(begun, begun.title, text, f"quiet-{begun.event}", now)


def may_be_unknown(record: OpenAlertRecord, now: datetime) -> bool:
    """Return whether an alert has lasted so long that a node that was to stay has a record."""
    opened = record.opened
    of_node = opened is not None and opened.kind in ("lost", "verdict") and opened.node
    return bool(of_node) and now - record.at >= UNKNOWN_AFTER


def end_of_unknown(begun: Alert, now: datetime) -> Alert:
    """The end of an alert about a node that is silent and of which the fleet has no record."""
    text = "It has been silent for minutes, and the fleet has no node of this name."
    title = f"{begun.pool}/{begun.node}: not known"
    return _resolved(begun, title, text, f"unknown-{begun.event}", now)


def is_of_predecessor(record: OpenAlertRecord, node: NodeRecord) -> bool:
    """Return whether an alert is about the silence of an earlier machine of a node's name.

    The event that the node has a successor ends it, unless what was recorded of that is lost.
    """
    opened, admitted_at = record.opened, node.admitted_at
    of_silence = opened is not None and opened.kind == "lost"
    return of_silence and not node.lost and admitted_at is not None and record.at < admitted_at


def end_of_predecessor(begun: Alert, now: datetime) -> Alert:
    """Return the end of an alert about the silence of an earlier machine."""
    text = "Another machine has joined under this name since, and it beats."
    title = f"{begun.pool}/{begun.node}: replaced"
    return _resolved(begun, title, text, f"replaced-{begun.event}", now)


def quiet_seconds(key: str) -> float:
    """Return how long an alert lasts without another event."""
    return QUIET_SECONDS.get(key.partition("/")[0], QUIET_SECONDS_DEFAULT)


def _resolved(begun: Alert, title: str, text: str, event: str, now: datetime) -> Alert:
    return Alert(
        severity=begun.severity,
        title=title,
        text=text,
        pool=begun.pool,
        node=begun.node,
        kind=begun.kind,
        fault=begun.fault,
        key=begun.key,
        event=event,
        time=now,
        since=begun.began,
        resolved=True,
    )


def _alert(event: Message, severity: Severity, kind: AlertKind, key: str, node: str) -> Alert:
    text = describe(event)
    detail = text.detail.rstrip(".")
    return Alert(
        severity=severity,
        title=f"{text.subject}: {text.title}"[:TITLE_CHARS_MAX],
        text=f"{detail[:1].upper()}{detail[1:]}."[:TEXT_CHARS_MAX] if detail else "",
        pool=getattr(event, "pool", ""),
        node=node,
        kind=kind,
        fault=_fault(event),
        key=key,
        event=event.id,
        time=event.time,
    )


def store_alert(failure: CurrentFailure, now: datetime) -> Alert:
    """The alert for a store that refuses what is written."""
    return Alert(
        severity="critical",
        title=f"{failure.about}: not writable",
        text=f"{failure.reason}. To resolve: {failure.remedy}.",
        kind="service-failure",
        key=f"{STORE_KEY}{failure.about}",
        event=f"store-unwritable-{failure.about}-{now.isoformat()}",
        time=now,
    )


def end_of_store_alert(begun: Alert, now: datetime) -> Alert:
    """Return the end of an alert about a condition."""
    title = f"{begun.key.removeprefix(STORE_KEY)}: writable again"
    return _resolved(begun, title, "It stores again.", f"end-{begun.event}", now)


Rule = tuple[Severity, AlertKind, str, str]
"""Severity, kind, key and node of an alert."""


def _rule(event: Message) -> Rule | None:  # noqa: C901, PLR0912 - one case an event
    match event:
        case n.Verdict(pool=pool, node=node):
            severity = _verdict_severity(event)
            return (severity, "verdict", f"health/{pool}/{node}", node) if severity else None
        case n.Lost(pool=pool, node=node):
            return "critical", "lost", f"lost/{pool}/{node}", node
        case n.MachineRefused(pool=pool, node=node):
            return "critical", "machine-refused", f"machine/{pool}/{node}", node
        case p.BreakerOpened(breaker_cause="wave", by=""):
            return None  # the incident alerts already
        case p.BreakerOpened(pool=pool, by=by):
            return "warning" if by else "critical", "breaker-opened", f"breaker/{pool}", ""
        case p.QuarantineFull(status="opened", pool=pool):
            return "critical", "quarantine-full", f"quarantine/{pool}", ""
        case p.OnDemandShort(status="opened", pool=pool):
            return "warning", "on-demand-short", f"on-demand/{pool}", ""
        case p.PoolCondition(status="opened", pool=pool, condition=condition):
            return "warning", "pool-condition", f"condition/{pool}/{condition}", ""
        case p.Incident(status="opened", pool=pool, incident=incident):
            return _incident_severity(event), "incident", f"incident/{pool}/{incident}", ""
        case p.SagaIsStuck(saga=saga):
            return "critical", "saga-stuck", f"saga/{saga}", ""
        case p.SagaFailed(pool=pool, node_gone=True, new_node=node):
            return "warning", "saga-failed", _failed_key(pool, ""), node
        case p.SagaFailed(pool=pool, node=node):
            return "warning", "saga-failed", _failed_key(pool, node), node or event.new_node
        case p.SagaOverdue(saga=saga, node=node):
            return "warning", "saga-overdue", f"saga/{saga}", node
        case p.OperatorNeeded(pool=pool, node=node):
            return "critical", "operator-needed", f"operator/{pool}/{node}", node
        case p.NodeRefused(remedy=""):
            return None  # the failed saga alerts already
        case p.NodeRefused(pool=pool, node=node):
            return "critical", "node-refused", f"admission/{pool}", node
        case p.InstanceLeaked(pool=pool, instance=instance):
            return "critical", "instance-leaked", f"leak/{pool}/{instance}", instance
        case p.LaunchRefused(pool=pool, node=node):
            return "warning", "launch-refused", f"launch/{pool}", node
        case ConsumerLag(status="lagging", durable=durable):
            return "critical", "lag", f"lag/{durable}", ""
        case UnknownError(provider=provider, code=code):
            return "warning", "unknown-error", f"unknown-error/{provider}/{code}", ""
        case ServiceFailure(failure="store-unwritable"):
            return None  # alerted without the store
        case ServiceFailure(status="failing", failure=failure, about=about):
            return "critical", "service-failure", f"{failure}/{about}", ""
        case _:
            return None


def _failed_key(pool: str, node: str) -> str:
    """One alert for all attempts: of a node, or of a pool's launches."""
    return f"saga-failed/{pool}/{node}" if node else f"saga-failed/{pool}"


def ended_keys(event: Message) -> tuple[str, ...]:  # noqa: C901, PLR0912 - one case an event
    """The keys of the alerts that an event ends."""
    match event:
        case n.Verdict(status="healthy", pool=pool, node=node):
            return (
                f"health/{pool}/{node}",
                f"operator/{pool}/{node}",
                _failed_key(pool, node),
            )
        case n.Returned(pool=pool, node=node):
            return f"lost/{pool}/{node}", f"operator/{pool}/{node}"
        case n.Terminated(pool=pool, node=node, saga=saga):
            # The saga that replaces the node ends these alerts itself, once the gap is closed.
            of_node = () if saga.startswith(f"replace-{node}-") else keys_of_node(pool, node)
            return *of_node, f"leak/{pool}/{node}", *_of_saga(saga)
        case p.NodeReplaced(pool=pool, old_node=node, saga=saga):
            return *keys_of_node(pool, node), f"saga/{saga}"
        case p.OperatorNeeded(pool=pool, node=node, removed=True):
            return tuple(
                key for key in keys_of_node(pool, node) if key != f"operator/{pool}/{node}"
            )
        case n.Admitted(pool=pool, saga=saga):
            return f"admission/{pool}", f"launch/{pool}", _failed_key(pool, ""), *_of_saga(saga)
        case n.Uncordoned(pool=pool, node=node, saga=saga):
            return _failed_key(pool, node), *_of_saga(saga)
        case n.Cordoned(saga=saga) | n.Drained(saga=saga) | n.Promoted(saga=saga):
            return _of_saga(saga)
        case p.SagaFailed(saga=saga) | p.SagaCancelled(saga=saga):
            gone = keys_of_node(event.pool, event.node) if event.node_gone else ()
            return *gone, *_of_saga(saga)
        case n.Remediated(saga=saga):
            return _of_saga(saga)
        case p.BreakerClosed(pool=pool):
            return (f"breaker/{pool}",)
        case p.QuarantineFull(status="closed", pool=pool):
            return (f"quarantine/{pool}",)
        case p.OnDemandShort(status="closed", pool=pool):
            return (f"on-demand/{pool}",)
        case p.PoolCondition(status="closed", pool=pool, condition=condition):
            return (f"condition/{pool}/{condition}",)
        case p.Incident(status="closed", pool=pool, incident=incident):
            return (f"incident/{pool}/{incident}",)
        case ConsumerLag(status="caught-up", durable=durable):
            return (f"lag/{durable}",)
        case ServiceFailure(failure="store-unwritable"):
            return ()  # another service may still be refused
        case ServiceFailure(status="recovered", failure=failure, about=about):
            return (f"{failure}/{about}",)
        case _:
            return ()


def ends_pool(event: Message) -> str:
    """The pool all of whose alerts an event ends; empty: none."""
    return event.pool if isinstance(event, p.PoolRemoved) else ""


def keys_of_node(pool: str, node: str) -> tuple[str, ...]:
    """Return the keys of the alerts about a node's condition."""
    kinds = ("health", "lost", "operator", "saga-failed", "machine")
    return tuple(f"{kind}/{pool}/{node}" for kind in kinds)


def _of_saga(saga: str) -> tuple[str, ...]:
    """A stuck or overdue saga that goes on is neither."""
    return (f"saga/{saga}",) if saga else ()


def ending_subjects(event: Message) -> tuple[str, ...]:
    """Return where the events that end the alert about this one are published."""
    facts: tuple[str, ...] = ("verdict", "terminated", "returned", "uncordoned")
    match event:
        case n.Verdict(pool=pool, node=node) | n.Lost(pool=pool, node=node):
            pass
        case p.OperatorNeeded(pool=pool, node=node) | n.MachineRefused(pool=pool, node=node):
            pass
        case p.SagaFailed(pool=pool, node=node, node_gone=False) if node:
            pass
        case p.InstanceLeaked(pool=pool, instance=node):
            facts = ("terminated",)
        case p.SagaFailed(pool=pool) | p.LaunchRefused(pool=pool) | p.NodeRefused(pool=pool):
            return (subjects.node_event_in(pool, "admitted"),)
        case p.SagaIsStuck(pool=pool) | p.SagaOverdue(pool=pool):
            progress = ("cordoned", "drained", "terminated", "admitted", "uncordoned", "promoted")
            ends = ("node-replaced", "saga-failed", "saga-cancelled")
            return (
                *(subjects.node_event_in(pool, fact) for fact in (*progress, "remediated")),
                *(subjects.pool_event(pool, fact) for fact in ends),
            )
        case p.BreakerOpened(pool=pool):
            return (subjects.pool_event(pool, "breaker-closed"),)
        case p.PoolCondition(pool=pool):
            return (subjects.pool_event(pool, p.FACTS[p.PoolCondition]),)
        case p.QuarantineFull(pool=pool) | p.OnDemandShort(pool=pool) | p.Incident(pool=pool):
            return (subjects.pool_event(pool, p.FACTS[type(event)]),)
        case ConsumerLag() | ServiceFailure():
            return (subjects.fleet_event(FLEET_FACTS[type(event)]),)
        case _:
            return ()
    ends = ("node-replaced", "saga-failed", "saga-cancelled")
    return (
        *(subjects.node_event(pool, node, fact) for fact in facts),
        *(subjects.pool_event(pool, fact) for fact in ends),
    )


def _fault(event: Message) -> str:
    match event:
        case n.Verdict(kind=kind, code=code) | p.Incident(kind=kind, code=code):
            return called(kind, code)
        case n.Lost():
            return SILENCE
        case _:
            return ""


def _verdict_severity(event: n.Verdict) -> Severity | None:
    match event.status:
        case "unhealthy":
            return "critical"
        case "degraded":
            return "warning"
        case _:
            return None


def _incident_severity(event: p.Incident) -> Severity:
    # A failing program is its owner's concern; any other common fault is the operator's.
    program = event.scope == "job" and event.kind == "xid" and event.code in PROGRAM_CODES
    return "warning" if program else "critical"
