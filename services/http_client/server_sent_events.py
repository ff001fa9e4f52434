"""Reads server-sent events from the bytes of a stream. Pure."""

from dataclasses import dataclass
from typing import Final

EVENT_BYTES_MAX: Final = 16 * 1_048_576
"""The largest message of the bus, quoted."""


class StreamFormatError(ValueError):
    """The received bytes are no server-sent events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentEvent:
    """One event; without data it is a sign of life, which may say how far the stream has come."""

    kind: str = ""
    data: bytes = b""
    id: str = ""


class EventParser:
    """Takes in bytes as they come."""

    def __init__(self) -> None:
        self._rest = b""
        self._size = 0
        self._fields: dict[bytes, bytes] = {}
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[SentEvent]:
        """The events that are complete with these bytes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        found = [event for line in lines if (event := self._take(line.removesuffix(b"\r")))]
        self._limit(len(self._rest))
        return found

    def _take(self, line: bytes) -> SentEvent | None:
        if line:
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value)
            self._fields[name] = value
            self._size += len(line)
            self._limit(0)
            return None
        fields, data = self._fields, b"\n".join(self._data)
        self._fields, self._data, self._size = {}, [], 0
        if not fields:
            return None
        kind, id_ = (fields.get(name, b"").decode("utf-8", "replace") for name in (b"event", b"id"))
        return SentEvent(kind=kind, data=data, id=id_)

    def _limit(self, more: int) -> None:
        if self._size + more > EVENT_BYTES_MAX:
            raise StreamFormatError(f"an event is longer than {EVENT_BYTES_MAX} bytes")
