"""An alert as the JSON that the channels `webhook` and `exec` hand over. Pure."""

import hashlib
from typing import Final, Literal

import msgspec

from schemas.alert_records import Alert
from schemas.time_text import utc_text
from services.notifier.cloud_events import CloudEvent, cloud_event

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
    """Return the alert's document."""
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


def alert_event(alert: Alert) -> CloudEvent:
    """Return the alert's document as a CloudEvent."""
    return cloud_event(
        id_=idempotency_key(alert),
        source="navarch",
        kind=f"{CLOUD_EVENT_TYPE}.{'resolved' if alert.resolved else 'firing'}",
        subject=alert.key,
        time=alert.time,
        data=msgspec.json.encode(alert_document(alert)),
    )


def idempotency_key(alert: Alert) -> str:
    """The same whenever the same message is sent again."""
    return hashlib.sha256(f"{alert.key}\n{alert.event}".encode()).hexdigest()[:32]


def stages_of(alert: Alert, receipt: str) -> tuple[Stage, ...]:
    """Return what a vendor that knows acknowledgements is sent.

    `receipt`: of the last delivery; empty: the vendor does not have the alert.
    """
    if alert.resolved:
        return ("end",)
    if not alert.acknowledged_by:
        return ("begin",)
    return ("acknowledge",) if receipt else ("begin", "acknowledge")
