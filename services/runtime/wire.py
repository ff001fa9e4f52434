"""The server's own JSON and headers, read as values and errors of ours."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from services.runtime.bus import Stored
from services.runtime.errors import Conflict, Refused, Unavailable

CONFLICT_CODES: Final = frozenset({10071, 10164})
"""Wrong last sequence, in its two spellings."""
UNAVAILABLE: Final = 503
DIRECT_HEADERS: Final = frozenset(
    {"Nats-Stream", "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence"}
)
"""What the server adds to a message that is read directly; no part of the message."""


class ApiError(msgspec.Struct):
    """What the server says when it will not."""

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
    if error.code == UNAVAILABLE:
        raise Unavailable(text)
    raise Refused(text, error.err_code)


def read_direct(data: bytes, given: Mapping[str, str] | None) -> Stored:
    """A message that was read directly; the server tells its place in headers."""
    headers = dict(given or {})
    return Stored(
        subject=headers.pop("Nats-Subject"),
        data=data,
        sequence=int(headers.pop("Nats-Sequence")),
        time=datetime.fromisoformat(headers.pop("Nats-Time-Stamp")),
        headers={name: value for name, value in headers.items() if name not in DIRECT_HEADERS},
    )
