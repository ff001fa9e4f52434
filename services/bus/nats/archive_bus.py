"""A connection that takes whole streams out of the server and puts them in.

`STREAM.SNAPSHOT` and `STREAM.RESTORE` pass the server's own archive, in chunks that the receiver
acknowledges. The server gives up a transfer whose other side is silent for five seconds.
"""

import asyncio
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final

from services.bus.nats.client_protocol import ClientMessage
from services.bus.nats.nats_bus import REQUEST_TIMEOUT_SECONDS, NatsBus
from services.bus.protocol.server_protocol import read_ack, read_answer
from services.primitives.errors import NoResponders, Refused, Unavailable

CHUNK_BYTES: Final = 131_072
SILENCE_SECONDS_MAX: Final = 10.0
"""Without the next chunk of an archive: the server has given up, or is gone."""
TAKEN_SECONDS_MAX: Final = 60.0
"""Until the server has taken in a chunk, or has written the stream that the last one completes."""
FIRST_ATTEMPTS_MAX: Final = 40
FIRST_WAIT_SECONDS: Final = 0.05
"""Between attempts to send the first chunk: another server of a cluster may be the one to take it,
and its subscription arrives after its answer."""
STALLED_SECONDS: Final = 4.5
"""A bit less than the five after which the server gives up, though it is itself what is slow."""
SLOW: Final = (
    "the server needed more than five seconds for a part of it, and gave up, because it flushes "
    "its disk after every message: start it with `sync_interval: 2m` in its configuration, restore "
    "again, stop it, and start it with its own configuration (docs/backup.md)"
)
ENDED: Final = (None, "204")
"""Status of the message that ends an archive; servers set none on a short one."""


class ArchiveBus(NatsBus):
    """Connects as the administrator. Make one with `connect`."""

    @property
    def server_version(self) -> tuple[int, int]:
        """Return the major and minor version of the server."""
        version = self._client.connected_server_version
        return version.major, version.minor

    async def save(self, stream: str, write: Callable[[bytes], None]) -> dict[str, Any]:
        """Write a stream's archive, without consumers; return the server's answer about it.

        The archive has what was stored up to the answer's `state.last_seq` and was still there when
        the server came to it.
        """
        inbox = self._client.new_inbox()
        chunks: asyncio.Queue[ClientMessage] = asyncio.Queue()
        subscription = await self._client.subscribe(
            inbox, cb=chunks.put, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        try:
            answer = await self.admin(
                f"STREAM.SNAPSHOT.{stream}",
                {"deliver_subject": inbox, "no_consumers": True, "chunk_size": CHUNK_BYTES},
            )
            while (message := await _next(chunks, stream)).data:
                write(message.data)
                if message.reply:
                    await self._client.publish(message.reply)
        finally:
            await subscription.unsubscribe()
        found = message.headers or {}
        if (status := found.get("Status")) not in ENDED:
            reason = found.get("Description", "")
            raise Unavailable(f"{stream}: the archive ended early: {status} {reason}")
        return answer

    async def begin_load(self, config: dict[str, Any], state: dict[str, Any]) -> str:
        """Announce a stream's archive; return the subject on which `load` sends it."""
        answer = await self.admin(
            f"STREAM.RESTORE.{config['name']}", {"config": config, "state": state}
        )
        return str(answer["deliver_subject"])

    async def load(self, stream: str, place: str, chunks: Iterable[bytes]) -> None:
        """Make a stream of an archive; where this fails a part of it may be left."""
        call = f"STREAM.RESTORE.{stream}"
        send, loop = self._first, asyncio.get_running_loop()
        for chunk in chain(chunks, (b"",)):
            sent_at = loop.time()
            try:
                if (reply := await send(place, chunk)) or not chunk:
                    read_answer(reply, call)
            except (NoResponders, Refused) as error:
                if loop.time() - sent_at < STALLED_SECONDS:
                    raise
                raise Unavailable(f"{call}: {SLOW}") from error
            send = self._chunk

    async def _chunk(self, place: str, chunk: bytes) -> bytes:
        return (await self._ask(place, chunk, None, TAKEN_SECONDS_MAX)).data

    async def _first(self, place: str, chunk: bytes) -> bytes:
        for attempt in range(FIRST_ATTEMPTS_MAX):
            try:
                return await self._chunk(place, chunk)
            except NoResponders:
                if attempt == FIRST_ATTEMPTS_MAX - 1:
                    raise
            await asyncio.sleep(FIRST_WAIT_SECONDS)
        raise AssertionError("the last attempt returns or raises")

    async def store_as_is(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """Store a message with exactly these headers; return its sequence."""
        answer = await self._ask(subject, data, headers or None, REQUEST_TIMEOUT_SECONDS)
        return read_ack(answer.data, subject)


async def _next(chunks: "asyncio.Queue[ClientMessage]", stream: str) -> ClientMessage:
    try:
        async with asyncio.timeout(SILENCE_SECONDS_MAX):
            return await chunks.get()
    except TimeoutError as error:
        raise Unavailable(
            f"{stream}: nothing came of its archive for {SILENCE_SECONDS_MAX:g} s"
        ) from error
