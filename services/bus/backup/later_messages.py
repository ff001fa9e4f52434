"""Messages newer than a snapshot: how they are kept, and how they are stored again. Pure.

A snapshot of a stream that is being written ends at the sequence that the server names. A key that
is overwritten before the server reads it is not in it, but then its newer value is beyond that
sequence; so a snapshot and everything stored beyond it are the whole stream.
"""

import re
from datetime import datetime
from typing import Final

import msgspec

from schemas import headers as h
from schemas.duration import parse_duration
from schemas.stream_specs import StreamSpec
from schemas.topology import STREAMS
from services.bus.port import Stored

FILLER: Final = "restore-filler"
EXPECTED: Final = "Nats-Expected-"
SET_BY_SERVER: Final = frozenset(
    {"Nats-Scheduler", "Nats-Schedule-Next", h.MARKER_REASON, h.STREAM_SOURCE}
)
ROLLUP: Final = "Nats-Rollup"

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Stored)


def keeps_sequences(spec: StreamSpec) -> bool:
    """Return whether other records and messages refer to sequences of a stream.

    A request's sequence is its ID, and entries of SAGAS are guarded by those before them.
    """
    return any(spec.name == each.name for each in STREAMS)


def as_line(stored: Stored) -> bytes:
    """Return a message as a line of JSON."""
    return _encoder.encode(stored) + b"\n"


def read_line(line: bytes) -> Stored:
    """Return the message of a line."""
    return _decoder.decode(line)


def headers_again(stored: Stored, spec: StreamSpec, now: datetime) -> dict[str, str] | None:
    """Headers with which a message is stored again; None where its time is over."""
    found = {name: value for name, value in stored.headers.items() if name not in SET_BY_SERVER}
    if not keeps_sequences(spec):
        # The entry that it was guarded by may have been overwritten since.
        found = {name: value for name, value in found.items() if not name.startswith(EXPECTED)}
    if h.MARKER_REASON in stored.headers:
        found |= {h.KV_OPERATION: "PURGE", ROLLUP: "sub"}
    if (ttl := found.get(h.TTL)) is not None and re.match(r"\d", ttl):
        left = parse_duration(ttl) - (now - stored.time).total_seconds()
        if left < 1:
            return None
        found[h.TTL] = f"{int(left)}s"
    return found


def filler_subject(spec: StreamSpec) -> str:
    """A subject of the stream that nothing else uses."""
    return re.sub(r"[*>]", FILLER, spec.subjects[0])
