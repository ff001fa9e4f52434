"""Storing messages, in three forms of one call: what a bus publishes, appends and schedules.

Each is the call that stores one message with its headers, and is here once for every bus.
"""

from abc import abstractmethod
from datetime import datetime

from schemas import headers as h
from schemas import subjects
from services.bus.port import Headers
from services.bus.protocol.server_protocol import firing, guard


class Storing:
    """The storing part of a bus."""

    @abstractmethod
    async def _store(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """Store a message and return its sequence; Conflict where a guard in its headers fails."""

    async def publish(
        self, subject: str, data: bytes, *, msg_id: str = "", headers: Headers | None = None
    ) -> int:
        """Store a message and return its sequence; a repeated `msg_id` stores nothing more."""
        known = {h.MSG_ID: msg_id} if msg_id else {}
        return await self._store(subject, data, dict(headers or {}) | known)

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        tree: str,
        expected: int,
        headers: Headers | None = None,
    ) -> int:
        """Store a message if `expected` is the last sequence under `tree`; else Conflict."""
        return await self._store(subject, data, dict(headers or {}) | guard(tree, expected))

    async def schedule(
        self, owner: str, key: str, at: datetime, data: bytes, *, headers: Headers | None = None
    ) -> None:
        """Store a timer: `data` arrives under the owner's due subject at that time, once."""
        timed = dict(headers or {}) | firing(at, subjects.timer_due(owner, key))
        await self._store(subjects.timer_schedule(owner, key), data, timed)
