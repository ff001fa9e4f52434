"""The server's own JSON and headers, read as values and errors of ours."""

from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from schemas import headers as h
from schemas.time_text import utc_text
from schemas.topology import SERVER_VERSION_MIN
from services.bus.port import Stored
from services.primitives.errors import (
    Conflict,
    Refused,
    SetupError,
    StoreFull,
    TooLarge,
    TooMany,
    Unavailable,
)

CONFLICT_CODES: Final = frozenset({10071, 10164})
"""Wrong last sequence, in its two spellings."""
UNAVAILABLE: Final = 503
STORAGE_EXHAUSTED: Final = frozenset({10028, 10047})
"""Errors of the server's memory and disk limits: its own state, though their code is 500."""
SUBJECT_FULL: Final = "maximum messages per subject exceeded"
"""In the server's words; the code has other meanings too."""
SUBJECT_CHARS_MAX: Final = 1024
"""The server ends a connection whose control line is longer than 4 KiB."""
DIRECT_HEADERS: Final = frozenset(
    {"Nats-Stream", "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence"}
)
"""What the server adds to a message that is read directly; no part of the message."""


class ApiError(msgspec.Struct):
    """Holds what the server says when it refuses a call."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class _PubAck(msgspec.Struct):
    seq: int = 0
    error: ApiError | None = None


_pub_ack = msgspec.json.Decoder(_PubAck)


def read_ack(data: bytes, subject: str) -> int:
    """The sequence in an acknowledgement; raises what it says instead."""
    try:
        ack = _pub_ack.decode(data)
    except msgspec.DecodeError as error:
        raise Unavailable(f"{subject}: no acknowledgement but {data[:80]!r}") from error
    if ack.error is not None:
        raise_api_error(ack.error, subject)
    return ack.seq


def read_answer(data: bytes, call: str) -> dict[str, Any]:
    """An answer of the JetStream API; raises what it says instead."""
    found: dict[str, Any] = msgspec.json.decode(data)
    if error := found.get("error"):
        raise_api_error(msgspec.convert(error, ApiError), call)
    return found


def raise_api_error(error: ApiError, what: str) -> None:
    """Raise the error of ours that the server's means."""
    text = f"{what}: {error.description} ({error.err_code or error.code})"
    if error.err_code in CONFLICT_CODES:
        raise Conflict(text)
    if error.err_code in STORAGE_EXHAUSTED:
        raise StoreFull(text)
    if SUBJECT_FULL in error.description:
        raise TooMany(text)
    if error.code == UNAVAILABLE:
        raise Unavailable(text)
    raise Refused(text, error.err_code)


def read_direct(data: bytes, given: Mapping[str, str] | None) -> Stored:
    """A message that was read directly; the server puts its place in headers."""
    headers = dict(given or {})
    return Stored(
        subject=headers.pop("Nats-Subject"),
        data=data,
        sequence=int(headers.pop("Nats-Sequence")),
        time=datetime.fromisoformat(headers.pop("Nats-Time-Stamp")),
        headers={name: value for name, value in headers.items() if name not in DIRECT_HEADERS},
    )


def ends_batch(given: Mapping[str, str] | None, stream: str) -> bool:
    """Return whether a message is the last of a direct read; Unavailable where that failed."""
    status = (given or {}).get("Status")
    if status not in (None, "204", "404"):
        raise Unavailable(f"{stream}: reading ended with status {status}")
    return status is not None


def read_message(found: Mapping[str, Any]) -> Stored:
    """A message as the stream's leader gives it: in JSON, headers and data in base 64."""
    headers: dict[str, str] = {}
    # The first line is the protocol's version.
    for line in b64decode(found.get("hdrs", "")).decode().split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return Stored(
        subject=found["subject"],
        data=b64decode(found.get("data", "")),
        sequence=int(found["seq"]),
        time=datetime.fromisoformat(found["time"]),
        headers=headers,
    )


def guard(tree: str, expected: int) -> dict[str, str]:
    """Headers that refuse a store unless `expected` is the last sequence under `tree`."""
    return {
        h.EXPECTED_LAST_SUBJECT_SEQ: str(expected),
        h.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: tree,
    }


HEADER_NAMES_MAX: Final = 256
_header_names: Final[set[str]] = set()
"""Names that were found to be correct."""


def parse_header_lines(raw: bytes) -> dict[str, str]:
    """Read `Name: value` lines as the client does, but not letter by letter."""
    found: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon and name in _header_names:
            found[name] = value.strip()
            continue
        key = name.strip()
        if colon and key.isascii() and len(key.split()) <= 1:
            found[key] = value.strip()
            if len(_header_names) < HEADER_NAMES_MAX:
                _header_names.add(key)
    return found


def header_bytes(headers: Mapping[str, str]) -> int:
    """Return what headers add to a message on the wire, where its size is limited and counted."""
    if not headers:
        return 0
    size = 12
    for name, value in headers.items():
        size += _bytes(name) + _bytes(value) + 4
    return size


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def refuse_too_large(
    subject: str, data: bytes, headers: Mapping[str, str] | None, bytes_max: int
) -> None:
    """Refuse what is larger than the server takes: it would end the connection, for good."""
    if len(subject) > SUBJECT_CHARS_MAX or not subject.isprintable() or " " in subject:
        raise TooLarge(f"{subject[:80]!r} is not a subject: it has {len(subject)} characters")
    size = len(data) + header_bytes(headers or {})
    if size > bytes_max:
        raise TooLarge(f"{subject}: {size} bytes are more than the server takes ({bytes_max})")


def firing(at: datetime, target: str) -> dict[str, str]:
    """Headers that make a stored message fire into `target` at a moment."""
    return {h.SCHEDULE: f"@at {utc_text(at)}", h.SCHEDULE_TARGET: target}


def check_version(found: tuple[int, int, int], url: str) -> None:
    """Raise SetupError where the server at `url` is older than Navarch needs."""
    if found < SERVER_VERSION_MIN:
        wanted = ".".join(map(str, SERVER_VERSION_MIN))
        raise SetupError(
            f"nats-server at {url} is {'.'.join(map(str, found))}; Navarch needs {wanted} or later "
            "(scheduled messages). Upgrade it, or unset NAVARCH_NATS_URL for the embedded server."
        )
