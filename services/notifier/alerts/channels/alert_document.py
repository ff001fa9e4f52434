"""An alert as the JSON that the channels `webhook` and `exec` hand over. Pure."""

import hashlib
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from schemas.alert_records import Alert

Stage = Literal["begin", "acknowledge", "end"]

CLOUD_EVENT_TYPE: Final = "io.navarch.alert.v1"


class AlertDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The documented contract: fields are added and never changed."""

    version: int = 1
    status: Literal["firing", "resolved"]
    key: str
    """The same for the same condition."""
    event: str
    """The event behind this message."""
    kind: str
    severity: str
    title: str
    text: str
    pool: str
    node: str
    fault: str
    acknowledged_by: str
    since: str
    time: str


def alert_document(alert: Alert) -> AlertDocument:
    """The alert's document."""
    return AlertDocument(
        status="resolved" if alert.resolved else "firing",
        key=alert.key,
        event=alert.event,
        kind=alert.kind,
        severity=alert.severity,
        title=alert.title,
        text=alert.text,
        pool=alert.pool,
        node=alert.node,
        fault=alert.fault,
        acknowledged_by=alert.acknowledged_by,
        since=utc_text(alert.began),
        time=utc_text(alert.time),
    )


def cloud_event(alert: Alert) -> dict[str, Any]:
    """The same as a CloudEvent 1.0 in structured mode."""
    return {
        "specversion": "1.0",
        "id": idempotency_key(alert),
        "source": "navarch",
        "type": f"{CLOUD_EVENT_TYPE}.{'resolved' if alert.resolved else 'firing'}",
        "subject": alert.key,
        "time": utc_text(alert.time),
        "datacontenttype": "application/json",
        "data": alert_document(alert),
    }


def idempotency_key(alert: Alert) -> str:
    """The same whenever the same message is sent again."""
    return hashlib.sha256(f"{alert.key}\n{alert.event}".encode()).hexdigest()[:32]


def utc_text(at: datetime) -> str:
    """RFC 3339, in UTC."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def stages_of(alert: Alert, receipt: str) -> tuple[Stage, ...]:
    """What a vendor that knows acknowledgements is sent; what it does not have is begun first.

    `receipt`: of the last delivery; empty: the vendor does not have the alert.
    """
    if alert.resolved:
        return ("end",)
    if not alert.acknowledged_by:
        return ("begin",)
    return ("acknowledge",) if receipt else ("begin", "acknowledge")
