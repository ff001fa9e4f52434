"""Pure functions of heartbeats: losses, our own lag, refused events, ending credentials.

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

ENDED_MAX: Final = 20_000
"""Nodes that are remembered to be gone."""
OUTLIVED_SECONDS: Final = 300.0
"""After its node is gone an agent may go on for so long: its machine shuts down."""
OUTLIVED_REMEDY: Final = (
    "look for each at its provider, by the ID that `navarch events --node NODE` shows, and end it "
    "there; if it is nothing of yours, stop the agent that uses its credentials"
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


def _named(keys: Collection[str]) -> str:
    """Return the first nodes by name, without a number: each change of a reason is logged."""
    named = [key.replace(".", "/", 1) for key in nsmallest(NAMED_MAX, keys)]
    return ", ".join(named) + (" and others" if len(keys) > NAMED_MAX else "")


class OutlivedNodes:
    """Nodes that are gone, of which some agents go on sending heartbeats.

    A provider that lies about a removal may leave the machine out of its lists as well: then its
    heartbeats alone show that it runs.
    """

    def __init__(self) -> None:
        self._ended: dict[str, float] = {}

    def ended(self, key: str, at: float) -> None:
        """Take in that a node is gone since a moment, in monotonic seconds."""
        self._ended[key] = at
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def began(self, key: str) -> None:
        """Take in that a node of this name registered."""
        self._ended.pop(key, None)

    def warnings(self, alive: Collection[str], now: float) -> list[CurrentFailure]:
        """Return what `status` shows of those whose agents should have ended by now."""
        beating = self._ended.keys() & alive
        late = {key for key in beating if now - self._ended[key] >= OUTLIVED_SECONDS}
        if not late:
            return []
        return [
            CurrentFailure(
                failure="node-outlived",
                about="nodes that are gone",
                reason="their machines go on running, which may cost money, as their agents still "
                f"send heartbeats: {_named(late)}",
                remedy=OUTLIVED_REMEDY,
            )
        ]


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
        """Return what the nodes that beat report; empty: nothing."""
        known = self._keys.intersection(alive)
        return f"agents cannot publish their events: {_named(known)}" if known else ""


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
        """Return whether a node's credentials had expired when its silence was noticed."""
        until = self._until.get(key)
        return until is not None and until <= at

    def warnings(self, alive: Collection[str]) -> list[CurrentFailure]:
        """Return what `status` shows of the nodes that beat and whose credentials expire first."""
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
        """Return how many expired together; 0: too few to look like one cause."""
        for key in [key for key, at in self.recent.items() if now - at > TOGETHER_SECONDS]:
            del self.recent[key]
            self._returned.discard(key)
        needed = nodes_needed(IncidentSpec(), alive + len(self.recent))
        return len(self.recent) if len(self.recent) >= needed else 0

    def lag_reason(self, now: float, alive: int, lag_seconds: float) -> str:
        """Return why losses are held back as our own lag; empty: they are not."""
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
