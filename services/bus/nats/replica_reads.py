"""Reading what is stored, wherever it is replicated: by any replica, or as its leader has it.

Any replica answers a direct read, from what it has by then; and the one that answers is the one we
are connected to. A service must see what it was just notified of: a command whose
log is read a millisecond too early looks like one never given. So where a stream has several
replicas its leader says how far a read must reach.
"""

import asyncio
from abc import abstractmethod
from typing import Any, Final

from services.bus.port import Stored
from services.bus.protocol.server_protocol import read_message
from services.primitives.errors import Refused, Unavailable

MESSAGE_NOT_FOUND: Final = 10037
BEHIND_SECONDS: Final = 0.005
"""Between two reads of a replica that does not have yet what its leader has."""
BEHIND_TRIES_MAX: Final = 400


class Replicas:
    """The reading half of a bus; the other half is how it asks."""

    _replicated = False
    """Whether streams have more than one replica."""

    @abstractmethod
    async def admin(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the JetStream API."""

    @abstractmethod
    async def _read(self, stream: str, filter_: str, after: int) -> list[Stored]:
        """Everything under a filter that the answering server has."""

    @abstractmethod
    async def _last(self, stream: str, subject: str) -> Stored | None:
        """The last message under a subject that the answering server has."""

    async def read(self, stream: str, filter_: str, *, after: int = 0) -> list[Stored]:
        """Everything stored under a filter, oldest first, after a sequence."""
        if not self._replicated:
            return await self._read(stream, filter_, after)
        for _ in range(BEHIND_TRIES_MAX):
            last = await self._last_of_leader(stream, filter_)
            if last is None or last.sequence <= after:
                return []
            stored = await self._read(stream, filter_, after)
            if stored and stored[-1].sequence >= last.sequence:
                return stored
            await asyncio.sleep(BEHIND_SECONDS)
        raise Unavailable(f"{stream}: the replica that answers stays behind its leader")

    async def last(self, stream: str, subject: str) -> Stored | None:
        """Return the last message under a subject, or under a whole tree."""
        if self._replicated:
            return await self._last_of_leader(stream, subject)
        return await self._last(stream, subject)

    async def _last_of_leader(self, stream: str, filter_: str) -> Stored | None:
        try:
            found = await self.admin(f"STREAM.MSG.GET.{stream}", {"last_by_subj": filter_})
        except Refused as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            raise
        return read_message(found["message"])
