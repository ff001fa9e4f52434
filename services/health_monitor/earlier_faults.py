"""Reads what a machine reported before its node is known; it registers again once it is adopted.

Others may give the name of a node again before the cloud reports the first machine gone. What the
second reports until then is taken for the first's, and is forgotten with it.
"""

from datetime import timedelta
from typing import Final

from schemas import subjects
from schemas.node_events import Fault, Registered
from schemas.node_records import NodeRecord
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS
from services.bus.port import Bus, Stored
from services.primitives.clock import Clock

EARLIER: Final = timedelta(hours=1)
"""Longer than a machine waits for its adoption."""
SKEW: Final = timedelta(minutes=1)
"""Between the clocks of nats-server and the pool-manager, which noted the registration."""
FAULTS_MAX: Final = 256
"""Read of one machine; a GPU that is lost is among its first."""


class EarlierFaults:
    """Reads the stored faults of a boot."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        """Read them on `bus`."""
        self._bus = bus
        self._clock = clock

    async def registration(self, node: NodeRecord) -> tuple[Stored, Registered] | None:
        """The stored message with which a node's boot registered; None: it is not kept."""
        if node.registered_at is None:
            return None
        subject = subjects.node_event(node.pool, node.node, "registered")
        found = await self._bus.read_batch(
            EVENTS.name, subject, after=node.registered_at - SKEW, count=FAULTS_MAX
        )
        for stored in found:
            event = decode_stored(stored)
            if isinstance(event, Registered) and event.boot_id == node.boot_id:
                return stored, event
        return None

    async def read(self, event: Registered) -> list[tuple[Stored, Fault]]:
        """The faults of the boot that registers, oldest first, of the last EARLIER."""
        subject = subjects.node_event(event.pool, event.node, "fault")
        found = await self._bus.read_batch(
            EVENTS.name, subject, after=self._clock.now() - EARLIER, count=FAULTS_MAX
        )
        decoded = ((stored, decode_stored(stored)) for stored in found)
        return [
            (stored, fault)
            for stored, fault in decoded
            if isinstance(fault, Fault) and fault.boot_id == event.boot_id
        ]
