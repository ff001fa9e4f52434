"""Nodes whose agents cannot publish their events, as their heartbeats say. Pure.

On a full disk each stream stops by itself: heartbeats are kept in memory and arrive, and of EVENTS
only agents may know, where no service has anything to write.
"""

from collections.abc import Collection
from heapq import nsmallest
from typing import Final

NAMED_MAX: Final = 5
_MARK: Final = b'"unwritable":true'
"""In heartbeats as agents encode them; defaults are left out."""


class RefusedAgents:
    """The nodes whose last heartbeat said so."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def add(self, key: str, heartbeat: bytes) -> None:
        """Take in a heartbeat."""
        if _MARK in heartbeat:
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
