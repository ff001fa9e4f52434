"""Nodes whose credentials expire soon, as their heartbeats say. Pure.

A node that falls silent when its credentials expire is not known to be broken.
"""

from collections.abc import Collection
from datetime import datetime
from heapq import nsmallest
from typing import Final

import msgspec

from schemas.fleet_queries import CurrentFailure
from schemas.messages import decoder
from schemas.node_records import HeartbeatRecord

NAMED_MAX: Final = 5
_MARK: Final = b'"credentials_until"'
"""In the few heartbeats that are worth decoding."""
REMEDY: Final = (
    "let the provisioner run, which renews those of nodes that a provider launched; for any other: "
    "`navarch nats-config agent POOL/NODE`, and copy the file to the node"
)

_beats: Final = decoder(HeartbeatRecord)


class EndingCredentials:
    """When credentials that are not renewed expire, by node."""

    def __init__(self) -> None:
        """Know of none."""
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
