"""A connection that can be held up, cut and restored, to whichever server a bus is connected to."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from services.bus.memory.memory_bus import MemoryBus
from services.bus.port import Bus
from services.primitives.errors import Unavailable

READ_BYTES: Final = 65_536


class Line(Protocol):
    """Declares what a bus is connected over."""

    async def hold(self) -> None:
        """Let nothing arrive from the server any more; what it sends is on its way."""
        ...

    async def cut(self) -> None:
        """End the connection; what is on its way is lost, and there is no way to a new one."""
        ...

    async def restore(self) -> None:
        """Let the connection be made again."""
        ...


@dataclass(frozen=True, slots=True)
class Cuttable:
    """A bus on a line, and one on none, to see what the server has."""

    bus: Bus
    line: Line
    onlooker: Bus

    async def cut(self) -> None:
        """Cut the line, and wait until the bus has seen it."""
        await self.line.cut()
        await self._until(connected=False)

    async def restore(self) -> None:
        """Restore the line, and wait until the bus is connected again."""
        await self.line.restore()
        await self._until(connected=True)

    async def _until(self, *, connected: bool) -> None:
        async with asyncio.timeout(60):
            while self.bus.connected is not connected:
                await asyncio.sleep(0.01)


@dataclass(slots=True)
class MemoryLine:
    """The in-memory server's: a link that the test controls."""

    up: bool = True
    bus: MemoryBus = field(init=False)
    _held: list[Callable[[], None]] | None = None

    async def hold(self) -> None:
        """Keep what arrives."""
        self._held = []

    async def cut(self) -> None:
        """Lose the connection; what was on its way is lost."""
        self.up = False
        self.bus.disconnected()
        held, self._held = self._held or [], None
        for hand_over in held:
            hand_over()

    async def restore(self) -> None:
        """Carry messages again."""
        self.up = True
        self.bus.reconnected()

    async def there(self, call: str, about: str) -> None:
        """Bring a request to the server."""
        del call
        await asyncio.sleep(0)
        if not self.up:
            raise Unavailable(f"{about}: the connection was lost")

    async def back(self, call: str, about: str) -> None:
        """Bring the answer back."""
        await self.there(call, about)

    def settles(self, word: str, about: str) -> bool:
        """Every acknowledgement arrives."""
        del word, about
        return True

    def arrives(self, about: str, hand_over: Callable[[], None]) -> None:
        """Hand a delivery over, or keep it."""
        del about
        if self._held is None:
            hand_over()
        else:
            self._held.append(hand_over)


class Proxy:
    """A real server's: a port that passes everything on, until it is cut."""

    def __init__(self, port: int) -> None:
        """Pass on to `port` of this machine."""
        self._behind = port
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def restore(self) -> None:
        """Accept connections again."""
        self._open.set()
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def hold(self) -> None:
        """Keep what the server sends."""
        self._open.clear()

    def pass_on(self) -> None:
        """Let what was kept arrive."""
        self._open.set()

    async def cut(self) -> None:
        """Close every connection, and take none."""
        if self._server is not None:
            self._server.close()
        for task in list(self._passing):
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, onward = await asyncio.open_connection("127.0.0.1", self._behind)
        self._writers |= {writer, onward}
        for work in (self._pass(reader, onward), self._pass(behind, writer, held=True)):
            task = asyncio.create_task(work)
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool = False
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if held:
                    await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
