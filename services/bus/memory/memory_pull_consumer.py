"""Takes one consumer's messages over a link, and hands its acknowledgements back."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from services.bus.memory.jetstream.consumer_state import Delivered, Word
from services.bus.memory.jetstream.server_state import ConsumerPlace
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import Link
from services.bus.port import Stored

RENEWALS: Final = 8
"""A follower asks for more so many times before it has none left, as a real client does."""


@dataclass(slots=True)
class MemoryDelivery:
    """One delivery, settled once."""

    stored: Stored
    deliveries: int
    pending: int
    number: int
    _puller: "MemoryPuller"
    _settled: bool = False

    def __hash__(self) -> int:
        """Hash by a count, so that a set of deliveries has the same order in every run."""
        return self.number

    def __eq__(self, other: object) -> bool:
        """Compare by identity, not by content."""
        return self is other

    async def _settle(self, word: Word, delay_seconds: float = 0.0) -> None:
        if not self._settled:
            self._settled = True
            self._puller.settle(self, word, delay_seconds)

    async def ack(self) -> None:
        """Done with it."""
        await self._settle("ack")

    async def nak(self, delay_seconds: float) -> None:
        """Deliver it again, after a delay."""
        await self._settle("nak", delay_seconds)

    async def term(self) -> None:
        """Never deliver it again."""
        await self._settle("term")

    async def progress(self) -> None:
        """Still being processed: restart the acknowledgement wait."""
        if not self._settled:
            self._puller.acknowledge(self, "progress", 0.0)


class AcknowledgementQueue:
    """Sends acknowledgements; what is given while the connection is lost waits for its return."""

    def __init__(self, server: MemoryServer, link: Link) -> None:
        self._server = server
        self._link = link
        self._kept: dict[tuple[int, Word], tuple[ConsumerPlace, MemoryDelivery, float]] = {}
        """Delivery and word; a sign of progress is worth no more for being repeated."""
        self._closed = False

    def send(
        self, place: ConsumerPlace, delivery: MemoryDelivery, word: Word, delay_seconds: float
    ) -> None:
        """Send an acknowledgement, as far as the link carries it."""
        if self._closed:
            return
        if not self._link.up:
            self._kept[delivery.number, word] = (place, delivery, delay_seconds)
        elif self._link.settles(word, delivery.stored.subject):
            self._server.settle(place, delivery.stored.sequence, word, delay_seconds)

    def flush(self) -> None:
        """The connection is back."""
        kept, self._kept = self._kept, {}
        for (_, word), (place, delivery, delay_seconds) in kept.items():
            self.send(place, delivery, word, delay_seconds)

    def close(self) -> None:
        """Send nothing any more."""
        self._closed = True
        self._kept.clear()


class MemoryPuller:
    """Takes messages as long as it has room for more."""

    def __init__(
        self,
        server: MemoryServer,
        link: Link,
        place: ConsumerPlace,
        room: int,
        outbox: AcknowledgementQueue | None = None,
    ) -> None:
        """Take from `place`, up to `room` at once; no `outbox`: nothing need be acknowledged."""
        self._server = server
        self._link = link
        self._place = place
        self._room = room
        self._outbox = outbox
        self._held = 0
        self._freed = 0
        """Room of a follower that the server does not know of yet."""
        self._coming = 0
        """How many are on their way."""
        self._number = server.begin(self)
        self._arrived: asyncio.Queue[MemoryDelivery | None] = asyncio.Queue()
        self._stopped = False
        self._life = 0
        """Counts connections: what was on its way when one was lost does not arrive."""

    def __hash__(self) -> int:
        """Hash by a count, as everything that lies in sets here."""
        return self._number

    def __eq__(self, other: object) -> bool:
        """Compare by identity."""
        return self is other

    def hand(self, delivered: Delivered) -> None:
        """Take what the server deals, when the link has brought it."""
        delivery = MemoryDelivery(
            delivered.stored,
            delivered.deliveries,
            delivered.pending,
            self._server.number(),
            self,
        )
        life = self._life
        self._coming += 1

        def arrived() -> None:
            if life != self._life and self._outbox is not None:
                return
            self._coming -= 1
            if not self._stopped:
                self._held += 1
                self._arrived.put_nowait(delivery)

        self._link.arrives(delivered.stored.subject, arrived)

    def deleted(self) -> None:
        """A follower creates its consumer again; a durable's puller waits for its return."""
        if self._outbox is None:
            self.stop()

    def settle(self, delivery: MemoryDelivery, word: Word, delay_seconds: float) -> None:
        """Send an acknowledgement, and make room for another message."""
        self._held -= 1
        self.acknowledge(delivery, word, delay_seconds)
        if self._stopped or not self._link.up:
            return
        self._freed += 1
        if self._outbox is not None or self._freed * RENEWALS >= self._room:
            self._server.take(self._place, self._number, self._freed)
            self._freed = 0

    def acknowledge(self, delivery: MemoryDelivery, word: Word, delay_seconds: float) -> None:
        """Send an acknowledgement, where one is wanted."""
        if self._outbox is not None:
            self._outbox.send(self._place, delivery, word, delay_seconds)

    def pause(self) -> None:
        """Take nothing: the connection is lost, and with it what was on its way."""
        self._life += 1
        if self._outbox is not None:
            self._coming = 0
        self._server.leave(self._place, self._number)

    def resume(self) -> None:
        """Take again: the connection is back."""
        if not self._stopped:
            self._freed = 0
            room = self._room - self._held - self._coming
            self._server.take(self._place, self._number, room)

    async def run(self) -> AsyncIterator[MemoryDelivery]:
        """Yield deliveries until stopped."""
        if self._link.up:
            self._server.take(self._place, self._number, self._room)
        try:
            while not self._stopped:
                delivery = await self._arrived.get()
                if delivery is None:
                    break
                if self._outbox is None:
                    self.settle(delivery, "ack", 0.0)
                yield delivery
        finally:
            self.stop()
            self._hand_back()

    def stop(self) -> None:
        """Take no more, and end what runs."""
        if not self._stopped:
            self._stopped = True
            self._server.end(self._place, self._number)
            self._arrived.put_nowait(None)

    def _hand_back(self) -> None:
        """Hand back what arrived and was not taken: another replica gets it at once."""
        while not self._arrived.empty():
            delivery = self._arrived.get_nowait()
            if delivery is not None:
                self.acknowledge(delivery, "nak", 0.0)
