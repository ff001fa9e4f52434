"""Checks what `navarch doctor` looks at, and explains what it finds. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from schemas.fleet_queries import CurrentFailure
from schemas.permissions import SERVICES
from schemas.stream_specs import StreamSpec
from schemas.topology import (
    DEAD,
    DURABLES,
    EVENTS,
    EVERY_STREAM,
    FACTS_WAITING_MAX,
    INTAKE,
    MIB,
)
from services.bus.nats.file_limits import FILES_MIN, low_limit

FULL_SHARE: Final = 0.8
"""A stream that refuses messages when it is full is reported from here on."""
CLOCK_SECONDS_MAX: Final = 1.0
WAITING_SECONDS_MAX: Final = 60.0
"""Facts of agents leave INTAKE within a second."""
LAG_MESSAGES_MAX: Final = 10_000
DISK_SHARE_MIN: Final = 0.05
DISK_BYTES_MIN: Final = 1024 * MIB
Outcome = Literal["ok", "warning", "failing"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Says what one check found."""

    check: str
    outcome: Outcome = "ok"
    detail: str
    remedy: str = ""


class HeldMessages(msgspec.Struct, frozen=True):
    """Says how much a stream holds."""

    messages: int = 0
    bytes: int = 0
    first_ts: datetime | None = None


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as the server describes it, with the server's time."""

    ts: datetime
    state: HeldMessages = HeldMessages()
    config: dict[str, Any] = {}


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A durable as the server describes it."""

    num_pending: int = 0
    num_ack_pending: int = 0
    config: dict[str, Any] = {}


class ServiceReply(msgspec.Struct, frozen=True):
    """A service as one of its replicas describes it."""

    version: str = ""


def clock_finding(server: datetime, asked: datetime, answered: datetime) -> Finding:
    """Return how far this machine's clock is off; a round trip's length is not counted."""
    off = max(server - answered, asked - server, timedelta(0)).total_seconds()
    if off <= CLOCK_SECONDS_MAX:
        return Finding(check="clock", detail="this machine's clock agrees with the server's")
    return Finding(
        check="clock",
        outcome="warning",
        detail=f"this machine's clock and the server's are {off:.1f} s apart",
        remedy="run NTP on both; credentials and deadlines depend on their clocks",
    )


def stream_findings(found: Mapping[str, StreamInfo]) -> list[Finding]:
    """Streams and buckets that are missing or nearly full; one line where all are well."""
    problems = [each for spec in EVERY_STREAM for each in _stream(spec, found.get(spec.name))]
    if problems:
        return problems
    held = sum(each.state.bytes for each in found.values()) / MIB
    return [Finding(check="store", detail=f"{len(found)} streams and buckets, {held:,.0f} MiB")]


def _stream(spec: StreamSpec, info: StreamInfo | None) -> Iterable[Finding]:
    if info is None:
        yield Finding(
            check=f"stream {spec.name}",
            outcome="failing",
            detail=f"it is missing: {spec.description}",
            remedy="the services create it within ten seconds if they run; docs/backup.md, "
            "The store is lost",
        )
        return
    if (
        spec.discard == "new"
        and spec is not INTAKE
        and 0 < spec.bytes_max * FULL_SHARE <= info.state.bytes
    ):
        yield Finding(
            check=f"stream {spec.name}",
            outcome="failing",
            detail=f"{info.state.bytes / spec.bytes_max:.0%} of {spec.bytes_max // MIB} MiB are "
            "used, and it refuses more when it is full",
            remedy="see `navarch saga list` for sagas that do not end",
        )
    if spec is INTAKE and info.state.messages and (first := info.state.first_ts) is not None:
        waited = (info.ts - first).total_seconds()
        if waited > WAITING_SECONDS_MAX:
            yield Finding(
                check=f"stream {spec.name}",
                outcome="failing",
                detail=f"facts of agents wait there for {waited:.0f} s, and a node that has "
                f"{FACTS_WAITING_MAX} of a kind there can report no more of it",
                remedy="start the health-monitor, which makes room; if it runs, read its log and "
                f"that of nats-server, which copies {INTAKE.name} into {EVENTS.name}",
            )
    if spec.name == DEAD.name and info.state.messages:
        yield Finding(
            check=f"stream {spec.name}",
            outcome="warning",
            detail=f"{info.state.messages} messages could not be processed",
            remedy="docs/troubleshooting.md, Dead letters",
        )


def durable_findings(found: Mapping[str, ConsumerInfo]) -> list[Finding]:
    """Durables that are missing or behind; one line where all are well."""
    problems = []
    for spec in DURABLES:
        info = found.get(spec.name)
        if info is None:
            problems.append(
                Finding(
                    check=f"consumer {spec.name}",
                    outcome="failing",
                    detail=f"it is missing in {spec.stream}: {spec.description}",
                    remedy="its service creates it again within seconds if it runs",
                )
            )
        elif info.num_pending > LAG_MESSAGES_MAX:
            problems.append(
                Finding(
                    check=f"consumer {spec.name}",
                    outcome="warning",
                    detail=f"{info.num_pending:,} messages wait in {spec.stream}",
                    remedy="check that its service runs, and whether one replica is enough",
                )
            )
    waiting = sum(each.num_pending + each.num_ack_pending for each in found.values())
    summary = f"{len(found)} consumers, {waiting:,} messages wait or are in work"
    return problems or [Finding(check="consumers", detail=summary)]


def service_findings(replies: Mapping[str, ServiceReply], own_version: str) -> list[Finding]:
    """Return which services answer, and of which release."""
    return [_service(name, replies.get(name), own_version) for name in SERVICES]


def _service(name: str, reply: ServiceReply | None, own_version: str) -> Finding:
    if reply is None:
        return Finding(
            check=name,
            outcome="failing",
            detail="no replica answers",
            remedy="start it and read its log; docs/troubleshooting.md, A service is down",
        )
    if reply.version != own_version:
        return Finding(
            check=name,
            outcome="warning",
            detail=f"it is release {reply.version}, this command {own_version}",
            remedy="upgrade the older of both",
        )
    return Finding(check=name, detail=f"it answers, release {own_version}")


def failure_findings(failures: Sequence[CurrentFailure]) -> list[Finding]:
    """Return what fails now inside the services, and what expires soon."""
    return [
        Finding(check=each.about, outcome="failing", detail=each.reason, remedy=each.remedy)
        for each in failures
    ]


def files_finding(files: int) -> Finding:
    """Return whether the served nats-server may open enough files."""
    detail = f"nats-server may open {files:,} files"
    if not (few := low_limit(files)):
        return Finding(check="open files", detail=detail)
    outcome: Outcome = "warning" if files >= FILES_MIN else "failing"
    return Finding(check="open files", outcome=outcome, detail=detail, remedy=few)


def disk_finding(directory: str, free_bytes: int, total_bytes: int) -> Finding:
    """Return how much room the disk of the data directory has."""
    free = f"{free_bytes / MIB / 1024:,.1f} of {total_bytes / MIB / 1024:,.1f} GiB free"
    detail = f"{free} in {directory}"
    if free_bytes >= max(DISK_BYTES_MIN, total_bytes * DISK_SHARE_MIN):
        return Finding(check="disk", detail=detail)
    return Finding(
        check="disk",
        outcome="warning",
        detail=detail,
        remedy="free some: a full disk stops the store, and nats-server must be restarted after",
    )
