"""What heartbeats say: losses and our own lag, refused events, ending credentials. Pure.

A node whose heartbeat expires alone is lost. Where many expire together the bus or this service may
be what is slow: they wait until each node could have sent one more heartbeat, and for as long as
the bus answers late or the watch lags behind, up to a limit. What beats again by then was never
lost; that it waited is reported once.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from heapq import nsmallest
from typing import Final

import msgspec

from schemas.fleet_queries import CurrentFailure
from schemas.messages import decoder
from schemas.node_records import HeartbeatRecord
from schemas.settings import IncidentSpec
from services.primitives.common_causes import nodes_needed

_REFUSED_MARK: Final = b'"unwritable":true'
"""In heartbeats as agents encode them; defaults are left out."""
NAMED_MAX: Final = 5
_MARK: Final = b'"credentials_until"'
"""In the few heartbeats that are worth decoding."""
REMEDY: Final = (
    "let the provisioner run, which renews those of nodes that a provider launched; for any other: "
    "`navarch nats-config agent POOL/NODE`, and copy the file to the node"
)

_beats: Final = decoder(HeartbeatRecord)
CONFIRM_SECONDS: Final = 2.0
"""Every expired heartbeat waits so long, so that the first of many waits as the others do."""
TOGETHER_SECONDS: Final = 60.0
"""Heartbeats that expire within this time expire together."""
LAG_SECONDS_MAX: Final = 2.0
"""A slower answer of the bus, or a watch that is further behind, is our own lag."""
HOLD_SECONDS_MAX: Final = 120.0
"""However much we lag, a silent node is published to be lost after this."""
RETURNED_SHARE: Final = 0.5
"""Of heartbeats that expired together; where more are back before they are published, we lagged."""


class RefusedAgents:
    """The nodes whose last heartbeat said so.

    On a full disk each stream stops by itself: heartbeats are kept in memory and arrive, and of
    EVENTS only agents may know, where no service has anything to write.
    """

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def add(self, key: str, heartbeat: bytes) -> None:
        """Take in a heartbeat."""
        if _REFUSED_MARK in heartbeat:
            self._keys.add(key)
        else:
            self._keys.discard(key)

    def reason(self, alive: Collection[str]) -> str:
        """What the nodes that beat report; empty: nothing."""
        known = self._keys.intersection(alive)
        named = [key.replace(".", "/", 1) for key in nsmallest(NAMED_MAX, known)]
        if not named:
            return ""
        # Without a number: each change of the reason is logged.
        more = " and others" if len(known) > NAMED_MAX else ""
        return f"agents cannot publish their events: {', '.join(named)}{more}"


class EndingCredentials:
    """When credentials that are not renewed expire, by node.

    A node that falls silent when its credentials expire is not known to be broken.
    """

    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}

    def add(self, key: str, heartbeat: bytes) -> None:
        """Take in a heartbeat, from which the node's credentials are known."""
        until = None
        if _MARK in heartbeat:
            try:
                until = _beats.decode(heartbeat).credentials_until
            except msgspec.DecodeError:
                return
        if until is None:
            self._until.pop(key, None)
        else:
            self._until[key] = until

    def expired(self, key: str, at: datetime) -> bool:
        """Whether a node's credentials had expired when its silence was noticed."""
        until = self._until.get(key)
        return until is not None and until <= at

    def warnings(self, alive: Collection[str]) -> list[CurrentFailure]:
        """What `status` shows: of the nodes that beat, those whose credentials expire first."""
        ending = ((until, key) for key, until in self._until.items() if key in alive)
        soon = nsmallest(NAMED_MAX + 1, ending)
        if not soon:
            return []
        named = ", ".join(
            f"{key.replace('.', '/', 1)} at {until:%Y-%m-%d %H:%M} UTC"
            for until, key in soon[:NAMED_MAX]
        )
        # Without a number: each change of the reason is logged.
        more = " and others" if len(soon) > NAMED_MAX else ""
        return [
            CurrentFailure(
                failure="expires-soon",
                about="credentials of nodes",
                reason=f"they expire and are not renewed: {named}{more}",
                remedy=REMEDY,
            )
        ]


@dataclass(slots=True)
class ExpiredHeartbeats:
    """Heartbeats that expired lately, and those of them that wait to be published as losses."""

    interval_seconds: float
    """Of heartbeats."""
    waiting: dict[str, float] = field(default_factory=dict)
    """Key -> when this replica saw that it expired."""
    recent: dict[str, float] = field(default_factory=dict)
    """The same of all that expired lately."""
    _returned: set[str] = field(default_factory=set)

    def expired(self, key: str, now: float) -> None:
        """Take in one that expired."""
        self.waiting.setdefault(key, now)
        self.recent[key] = now
        self._returned.discard(key)

    def beats(self, key: str) -> None:
        """Take in that a node beats: nothing is published of it."""
        if self.waiting.pop(key, None) is not None:
            self._returned.add(key)

    def due(self, now: float, alive: int, lag_seconds: float) -> list[str]:
        """Take out those that are losses; `alive`: how many nodes beat."""
        together = self.together(now, alive)
        hold = self.interval_seconds + CONFIRM_SECONDS if together else CONFIRM_SECONDS
        lags = together and lag_seconds > LAG_SECONDS_MAX
        due = [
            key
            for key, at in self.waiting.items()
            if now - at >= (HOLD_SECONDS_MAX if lags else hold)
        ]
        for key in due:
            del self.waiting[key]
        return due

    def together(self, now: float, alive: int) -> int:
        """How many expired together; 0: too few to look like one cause."""
        for key in [key for key, at in self.recent.items() if now - at > TOGETHER_SECONDS]:
            del self.recent[key]
            self._returned.discard(key)
        needed = nodes_needed(IncidentSpec(), alive + len(self.recent))
        return len(self.recent) if len(self.recent) >= needed else 0

    def lag_reason(self, now: float, alive: int, lag_seconds: float) -> str:
        """Why losses are held back as our own lag; empty: they are not."""
        together = self.together(now, alive)
        if not together:
            return ""
        what = f"{together} heartbeats expired within {TOGETHER_SECONDS:.0f} s"
        if self.waiting and lag_seconds > LAG_SECONDS_MAX:
            return (
                f"{what} while the bus or the health-monitor lags by {lag_seconds:.1f} s: no loss "
                "is published until it keeps up"
            )
        if len(self._returned) > together * RETURNED_SHARE:
            return f"{what} and {len(self._returned)} were back before they were published as lost"
        return ""
