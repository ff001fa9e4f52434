"""Declares which events alert operators, how urgently, under which key, and what ends an alert.

Keys are templates over the event's fields. A condition and its end have the same key. An alert that
no event ends lasts until nothing more was heard of it for its `quiet_seconds`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

from schemas import node_events as n
from schemas import pool_events as p
from schemas.alert_records import Severity
from schemas.enums import PROGRAM_CODES, AlertKind
from schemas.fleet_events import (
    AutomationStopped,
    ConsumerLag,
    FailureKind,
    ServiceFailure,
    UnknownError,
)
from schemas.messages import Message

HOUR: Final = 3600.0
HEALTH: Final = "health/{pool}/{node}"
LOST: Final = "lost/{pool}/{node}"
OPERATOR: Final = "operator/{pool}/{node}"
MACHINE: Final = "machine/{pool}/{node}"
IDENTITY: Final = "identity/{pool}/{node}"
FLAPPING: Final = "flapping/{pool}/{node}"
FAILED: Final = "saga-failed/{pool}/{node}"
FAILED_LAUNCHES: Final = "saga-failed/{pool}"
LEAK: Final = "leak/{pool}/{node}"
SAGA: Final = "saga/{saga}"
ADMISSION: Final = "admission/{pool}"
LAUNCH: Final = "launch/{pool}"
BREAKER: Final = "breaker/{pool}"
QUARANTINE: Final = "quarantine/{pool}"
ON_DEMAND: Final = "on-demand/{pool}"
CONDITION: Final = "condition/{pool}/{condition}"
INCIDENT: Final = "incident/{pool}/{incident}"
LAG: Final = "lag/{durable}"
STOP: Final = "stop/{scope}"
ERROR: Final = "unknown-error/{provider}/{code}"
FAILURE: Final = "{failure}/{about}"
NODE_KEYS: Final = (HEALTH, LOST, OPERATOR, FAILED, MACHINE, IDENTITY, FLAPPING)
"""Keys of the alerts about a node's condition."""


class AlertRule(NamedTuple):
    """Says that an event alerts; the first rule of its type that holds counts."""

    severity: Severity | None
    """None: another event alerts already."""
    kind: AlertKind
    key: str
    node: str
    """The field that names the node; empty: the alert is about none."""
    when: Mapping[str, Any]


def _alert(
    severity: Severity | None, kind: AlertKind, key: str, node: str = "", /, **when: Any
) -> AlertRule:
    return AlertRule(severity, kind, key, node, when)


def _none(kind: AlertKind, /, **when: Any) -> AlertRule:
    return AlertRule(None, kind, "", "", when)


ALERTS: Final[Mapping[type[Message], Sequence[AlertRule]]] = {
    n.Verdict: [
        _alert("critical", "verdict", HEALTH, "node", status="unhealthy"),
        _alert("warning", "verdict", HEALTH, "node", status="degraded"),
    ],
    n.Lost: [_alert("critical", "lost", LOST, "node")],
    n.MachineRefused: [_alert("critical", "machine-refused", MACHINE, "node")],
    n.IdentityChanged: [_alert("critical", "identity-changed", IDENTITY, "node", status="changed")],
    p.BreakerOpened: [
        _none("breaker-opened", breaker_cause="wave", by=False),  # the incident alerts already
        _alert("warning", "breaker-opened", BREAKER, by=True),
        _alert("critical", "breaker-opened", BREAKER),
    ],
    p.QuarantineFull: [_alert("critical", "quarantine-full", QUARANTINE, status="opened")],
    p.OnDemandShort: [_alert("warning", "on-demand-short", ON_DEMAND, status="opened")],
    p.PoolCondition: [_alert("warning", "pool-condition", CONDITION, status="opened")],
    p.Incident: [
        _none("incident", status="closed"),
        # A failing program is its owner's concern; any other common fault is the operator's.
        _alert("warning", "incident", INCIDENT, scope="job", kind="xid", code=PROGRAM_CODES),
        _alert("critical", "incident", INCIDENT),
    ],
    p.SagaIsStuck: [_alert("critical", "saga-stuck", SAGA)],
    p.SagaFailed: [
        _alert("warning", "saga-failed", FAILED_LAUNCHES, "new_node", node_gone=True),
        _alert("warning", "saga-failed", FAILED, "node", node=True),
        _alert("warning", "saga-failed", FAILED_LAUNCHES, "new_node"),
    ],
    p.SagaOverdue: [_alert("warning", "saga-overdue", SAGA, "node")],
    p.OperatorNeeded: [
        _alert("critical", "operator-needed", FLAPPING, "node", flapping=True),
        _alert("critical", "operator-needed", OPERATOR, "node"),
    ],
    p.NodeRefused: [
        _none("node-refused", remedy=False),  # the failed saga alerts already
        _alert("critical", "node-refused", ADMISSION, "node"),
    ],
    p.InstanceLeaked: [_alert("critical", "instance-leaked", LEAK, "instance")],
    p.LaunchRefused: [_alert("warning", "launch-refused", LAUNCH, "node")],
    AutomationStopped: [_alert("warning", "stopped", STOP, status="stopped")],
    ConsumerLag: [_alert("critical", "lag", LAG, status="lagging")],
    UnknownError: [_alert("warning", "unknown-error", ERROR)],
    ServiceFailure: [
        _none("service-failure", failure="store-unwritable"),  # alerted without the store
        _alert("critical", "service-failure", FAILURE, status="failing"),
    ],
}
"""Event class -> its rules."""


class AlertEnd(NamedTuple):
    """Says that an event ends alerts."""

    event: type[Message]
    keys: Sequence[str]
    node: str
    """The field that is `{node}` in the keys."""
    when: Mapping[str, Any]
    unless: Callable[[Any], bool] | None


def _end(
    event: type[Message],
    *keys: str,
    node: str = "node",
    unless: Callable[[Any], bool] | None = None,
    **when: Any,
) -> AlertEnd:
    return AlertEnd(event, keys, node, when, unless)


def _is_replaced(event: Any) -> bool:
    """Return whether a saga replaces the node: it ends the alerts when the gap is closed."""
    return bool(event.saga.startswith(f"replace-{event.node}-"))


_NOT_OPERATOR: Final = tuple(each for each in NODE_KEYS if each != OPERATOR)
ENDS: Final[Sequence[AlertEnd]] = [
    _end(n.Verdict, HEALTH, OPERATOR, FAILED, status="healthy"),
    *(_end(n.IdentityChanged, IDENTITY, status=each) for each in ("restored", "accepted")),
    _end(n.Returned, LOST, OPERATOR),
    _end(n.Terminated, *NODE_KEYS, unless=_is_replaced),
    _end(n.Terminated, LEAK),
    _end(p.NodeReplaced, *NODE_KEYS, node="old_node"),
    _end(p.OperatorNeeded, *_NOT_OPERATOR, removed=True),
    _end(p.SagaFailed, *NODE_KEYS, node_gone=True),
    _end(p.SagaCancelled, *NODE_KEYS, node_gone=True),
    _end(n.Admitted, ADMISSION, LAUNCH, FAILED_LAUNCHES),
    _end(n.Uncordoned, FAILED, FLAPPING),
    # A stuck or overdue saga that goes on is neither.
    *(
        _end(each, SAGA, saga=True)
        for each in (
            *(n.Cordoned, n.Drained, n.Terminated, n.Admitted, n.Uncordoned, n.Promoted),
            *(n.Remediated, p.NodeReplaced, p.SagaFailed, p.SagaCancelled),
        )
    ),
    _end(p.BreakerClosed, BREAKER),
    _end(p.QuarantineFull, QUARANTINE, status="closed"),
    _end(p.OnDemandShort, ON_DEMAND, status="closed"),
    _end(p.PoolCondition, CONDITION, status="closed"),
    _end(p.Incident, INCIDENT, status="closed"),
    _end(AutomationStopped, STOP, status="resumed"),
    _end(ConsumerLag, LAG, status="caught-up"),
    # Another service may still be refused by a store that takes no writes.
    _end(
        ServiceFailure,
        FAILURE,
        unless=lambda event: event.failure == "store-unwritable",
        status="recovered",
    ),
]
QUIET_SECONDS: Final[Mapping[str, float]] = {
    "saga-failed": HOUR,
    "launch": HOUR,
    "admission": 3 * HOUR,
    "machine": 3 * HOUR,
    "unknown-error": 24 * HOUR,
    **{each: 25 * 60.0 for each in get_args(FailureKind) if each != "store-unwritable"},
}
"""First word of a key -> after so long without another event the alert ends. A failed saga and a
refused launch are tried again within ten minutes, a pool whose new nodes were refused after an
hour; a second machine that is still there is reported once an hour. A failure in a service is
reported each eleven minutes; else the process that did has died, and its successor found none."""
QUIET_SECONDS_DEFAULT: Final = 7 * 24 * HOUR
