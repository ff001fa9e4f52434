"""Parses provider notices from metadata replies. Pure.

A notice that cannot be parsed is an error of the metadata service, not an absent notice.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from agent.observations import Notice
from schemas.enums import NoticeEffect
from schemas.node_events import Metric

TEXT_CHARS_MAX: Final = 200
NOTICES_MAX: Final = 64
GCP_PREEMPTION_SECONDS: Final = 30.0
GCP_GPU_STOP_SECONDS: Final = 3600.0
"""VMs with GPUs get a notice an hour before they are stopped; the reply names no time."""
GCP_MIGRATION_SECONDS: Final = 60.0
AWS_EFFECTS: Final[Mapping[str, NoticeEffect]] = {
    "instance-retirement": "retire",
    "instance-stop": "retire",
    "instance-reboot": "reboot",
    "system-reboot": "reboot",
    "system-maintenance": "reboot",
}
"""Codes of scheduled events. system-maintenance: of the host's power, where the instance restarts,
or of its network; the notice does not say which."""
GCP_EFFECTS: Final[Mapping[str, NoticeEffect]] = {
    "TERMINATE_ON_HOST_MAINTENANCE": "reclaim",
    "MIGRATE_ON_HOST_MAINTENANCE": "freeze",
}
AZURE_EFFECTS: Final[Mapping[str, NoticeEffect]] = {
    "Preempt": "reclaim",
    "Terminate": "reclaim",
    "Reboot": "reboot",
    "Redeploy": "redeploy",
    "Freeze": "freeze",
}
DURATION_SECONDS_MAX: Final = 86_400


class _SpotAction(msgspec.Struct, frozen=True):
    action: str
    time: str = ""


class _Rebalance(msgspec.Struct, frozen=True):
    noticeTime: str = ""  # noqa: N815 - as AWS spells it


class _ScheduledEvent(msgspec.Struct, frozen=True, rename="pascal"):
    code: str = ""
    event_id: str = ""
    state: str = "active"
    description: str = ""
    not_before: str = ""
    not_after: str = ""


class _AzureEvent(msgspec.Struct, frozen=True, rename="pascal"):
    event_id: str
    event_type: str
    event_status: str = ""
    event_source: str = ""
    description: str = ""
    not_before: str = ""
    resources: tuple[str, ...] = ()
    duration_in_seconds: int = -1


class _AzureEvents(msgspec.Struct, frozen=True, rename="pascal"):
    events: tuple[_AzureEvent, ...] = ()


class UnreadableNotice(Exception):  # noqa: N818 - reads as the state it names
    """A reply that differs from the cloud's documentation."""


def read(body: bytes, how: Callable[[bytes], Sequence[Notice]]) -> Sequence[Notice]:
    """Read a reply; raise UnreadableNotice if it is malformed."""
    try:
        return how(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableNotice(str(error)) from error


def aws_spot(body: bytes) -> list[Notice]:
    """Read `spot/instance-action`: `{"action": "terminate", "time": "2026-11-21T08:22:00Z"}`."""
    found = msgspec.json.decode(body, type=_SpotAction)
    action = _text(found.action)
    return [
        Notice(
            "preemption",
            f"aws.spot.{action}.{found.time}",
            action,
            f"AWS takes the spot instance back: {action} at {_text(found.time) or 'any moment'}",
            moment(found.time),
            {"action": action},
            effect="reclaim",
        )
    ]


def aws_rebalance(body: bytes) -> list[Notice]:
    """Read `events/recommendations/rebalance`: `{"noticeTime": …}`.

    A risk, not a decision, and therefore no preemption.
    """
    found = msgspec.json.decode(body, type=_Rebalance)
    text = "AWS recommends moving the work: the spot instance is at risk of being taken back"
    key, metrics = f"aws.rebalance.{found.noticeTime}", {"noticed": _text(found.noticeTime)}
    return [Notice("maintenance", key, "rebalance", text, metrics={**metrics})]


def aws_scheduled(body: bytes) -> list[Notice]:
    """Read `events/maintenance/scheduled`: an array, of which the active events count."""
    events = msgspec.json.decode(body, type=tuple[_ScheduledEvent, ...])
    return [
        Notice(
            "maintenance",
            f"aws.scheduled.{each.event_id}.{each.code}.{each.not_before}",
            _text(each.code),
            f"AWS schedules {_text(each.code)} for {_text(each.not_before)}: "
            f"{_text(each.description)}",
            moment(each.not_before),
            {"event_id": _text(each.event_id), "until": _text(each.not_after)},
            effect=AWS_EFFECTS.get(each.code),
            window_end=moment(each.not_after),
            unknown=each.code not in AWS_EFFECTS,
        )
        for each in events[:NOTICES_MAX]
        if each.state.lower() == "active" and not each.description.startswith("[")
    ]


def gcp_preempted(value: str, now: datetime) -> list[Notice]:
    """Read `instance/preempted`: TRUE or FALSE."""
    if value != "TRUE":
        return []
    return [
        Notice(
            "preemption",
            "gcp.preempted",
            "preempted",
            "Google Cloud takes the spot instance back, within 30 s",
            now + timedelta(seconds=GCP_PREEMPTION_SECONDS),
            effect="reclaim",
        )
    ]


def gcp_maintenance(value: str, now: datetime) -> list[Notice]:
    """Read `instance/maintenance-event`: NONE, MIGRATE_… or TERMINATE_ON_HOST_MAINTENANCE."""
    if value in ("", "NONE"):
        return []
    effect = GCP_EFFECTS.get(value)
    seconds = GCP_GPU_STOP_SECONDS if effect == "reclaim" else GCP_MIGRATION_SECONDS
    action = "terminate" if effect == "reclaim" else _text(value).lower()
    return [
        Notice(
            "maintenance",
            f"gcp.maintenance.{value}",
            action,
            f"Google Cloud announces maintenance: {_text(value)}",
            now + timedelta(seconds=seconds),
            {"event": _text(value)},
            effect=effect,
            unknown=value not in GCP_EFFECTS,
        )
    ]


def azure_events(body: bytes, name: str) -> list[Notice]:
    """Read `scheduledevents`: those about the VM `name`, among all of its placement group."""
    found = msgspec.json.decode(body, type=_AzureEvents)
    own = [
        each
        for each in found.events
        if each.event_status != "Completed" and name.lower() in map(str.lower, each.resources)
    ]
    return [_azure_event(each) for each in own[:NOTICES_MAX]]


def _azure_event(event: _AzureEvent) -> Notice:
    kind = event.event_type
    # What a user of the account terminates announces nothing that is to be prepared for.
    own = kind == "Terminate" and event.event_source != "Platform"
    effect = None if own else AZURE_EFFECTS.get(kind)
    start, seconds = moment(event.not_before), event.duration_in_seconds
    lasts = timedelta(seconds=min(seconds, DURATION_SECONDS_MAX))
    metrics: dict[str, Metric] = {"event_id": _text(event.event_id), "event": _text(kind)}
    if event.event_source:
        metrics["event_source"] = _text(event.event_source)
    if event.duration_in_seconds >= 0:
        metrics["duration_seconds"] = event.duration_in_seconds
    when = _text(event.not_before) or "any moment"
    return Notice(
        "preemption" if effect == "reclaim" else "maintenance",
        f"azure.{event.event_id}.{kind}",
        _text(kind).lower(),
        f"Azure announces {_text(kind)} from {when} on: {_text(event.description)}".rstrip(": "),
        start,
        metrics,
        effect=effect,
        window_end=start + lasts if start is not None and seconds >= 0 else None,
        unknown=kind not in AZURE_EFFECTS,
    )


def moment(text: str) -> datetime | None:
    """Read RFC 3339 or an HTTP date (`21 Jan 2019 09:00:43 GMT`); None where it is neither."""
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            found: Any = read(text.strip())
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        if isinstance(found, datetime) and found.tzinfo is not None:
            return found
    return None


def _text(value: str) -> str:
    return "".join(c if c.isprintable() else " " for c in value[:TEXT_CHARS_MAX])
