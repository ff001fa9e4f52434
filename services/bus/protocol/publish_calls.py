"""Storing messages, in three forms of one call: what a bus publishes, appends and schedules.

Each is the call that stores one message with its headers, and is here once for every bus.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime

from schemas import headers as h
from schemas import subjects
from services.bus.port import Headers
from services.bus.protocol.server_protocol import firing, guard
from services.bus.protocol.write_outcomes import WriteOutcomes
from services.primitives.errors import StoreFull, TooMany, Unavailable


class Storing:
    """Declares the storing part of a bus."""

    def __init__(self) -> None:
        self._outcomes = WriteOutcomes()

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Return whether the bus can be spoken to now."""

    def unwritable_streams(self) -> Mapping[str, str]:
        """Streams that take none of this process's writes, each with the last refusal."""
        return self._outcomes.unwritable(asyncio.get_running_loop().time())

    @abstractmethod
    async def _store(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """Store a message and return its sequence; Conflict where a guard in its headers fails."""

    async def publish(
        self, subject: str, data: bytes, *, msg_id: str = "", headers: Headers | None = None
    ) -> int:
        """Store a message and return its sequence; a repeated `msg_id` stores nothing more."""
        known = {h.MSG_ID: msg_id} if msg_id else {}
        return await self._recorded(subject, data, dict(headers or {}) | known)

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
        return await self._recorded(subject, data, dict(headers or {}) | guard(tree, expected))

    async def schedule(
        self, owner: str, key: str, at: datetime, data: bytes, *, headers: Headers | None = None
    ) -> None:
        """Store a timer: `data` arrives under the owner's due subject at that time, once."""
        timed = dict(headers or {}) | firing(at, subjects.timer_due(owner, key))
        await self._recorded(subjects.timer_schedule(owner, key), data, timed)

    async def _recorded(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """Store a message, and take note of what came of it.

        An answer that refuses this one message says nothing: it may be given before any write.
        """
        try:
            sequence = await self._store(subject, data, headers)
        except TooMany:
            raise
        except Unavailable as error:
            if self.connected:
                now, said = asyncio.get_running_loop().time(), isinstance(error, StoreFull)
                self._outcomes.refused(subject, str(error), now, said=said)
            raise
        self._outcomes.stored(subject)
        return sequence
