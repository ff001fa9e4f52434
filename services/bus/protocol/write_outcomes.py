"""Learns from this process's writes for which streams the server has stopped storing.

A server whose disk was full stops storing in each stream whose write failed, and answers no write
to it until it is restarted; the other streams go on. Its own reports of such a stream are as
always, so only who writes can tell.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from schemas.topology import STREAMS
from services.bus.protocol.subject_filters import matches

REFUSALS_MIN: Final = 3
"""Consecutive ones: a new leader of a stream is elected sooner."""
LASTED_SECONDS_MIN: Final = 15.0
SAID_MIN: Final = 2
"""Consecutive answers in which the server itself says that it stores nothing."""
REMEMBERED_SECONDS: Final = 900.0
"""Without any write for so long, nothing is known: every write is tried again sooner."""


class Refusals(msgspec.Struct, frozen=True):
    """Writes to one stream that the server did not take, with none that it took since."""

    count: int
    said: int
    """Those in which the server said so."""
    first_at: float
    last_at: float
    reason: str


class WriteOutcomes:
    """Records what came of the last writes to each stream; times are seconds of one clock."""

    def __init__(self) -> None:
        self._refusals: dict[str, Refusals] = {}

    def stored(self, subject: str) -> None:
        """Take note of a write that was stored."""
        if self._refusals:
            self._refusals.pop(stream_of(subject), None)

    def refused(self, subject: str, reason: str, now: float, *, said: bool = False) -> None:
        """Take note of one that was not, although the server could be reached.

        `said`: it answered that it stores nothing, rather than not at all.
        """
        stream = stream_of(subject)
        known = self._refusals.get(stream)
        first = known if known is not None and _is_recent(known, now) else None
        self._refusals[stream] = Refusals(
            count=first.count + 1 if first else 1,
            said=(first.said if first else 0) + said,
            first_at=first.first_at if first else now,
            last_at=now,
            reason=reason,
        )

    def unwritable(self, now: float) -> Mapping[str, str]:
        """Streams that take nothing, each with the last refusal."""
        return {
            stream: each.reason
            for stream, each in self._refusals.items()
            if _is_evident(each) and _is_recent(each, now)
        }


def _is_evident(refusals: Refusals) -> bool:
    lasted = refusals.last_at - refusals.first_at >= LASTED_SECONDS_MIN
    return refusals.said >= SAID_MIN or (refusals.count >= REFUSALS_MIN and lasted)


def _is_recent(refusals: Refusals, now: float) -> bool:
    return now - refusals.last_at <= REMEMBERED_SECONDS


def stream_of(subject: str) -> str:
    """The stream that stores a subject; the subject itself where none does."""
    match subject.split("."):
        case ["$KV", bucket, *_]:
            return f"KV_{bucket}"
        case ["$O", bucket, *_]:
            return f"OBJ_{bucket}"
    found = (each.name for each in STREAMS if any(matches(f, subject) for f in each.subjects))
    return next(found, subject)
