"""A flooding agent: valid facts, no two of which are equal, and garbage among them."""

import asyncio
from datetime import datetime
from typing import Final

from schemas import subjects
from schemas.messages import encode
from schemas.node_events import Fault
from services.primitives.errors import BusError
from services.simulator.engine.simulated_machine import SimulatedMachine

HARMLESS_XID: Final = 43
GARBAGE_EVERY: Final = 10
GARBAGE: Final = b'{"type": "io.navarch.agent.event.v1.fault", "time": []}'


async def flood(node: SimulatedMachine, count: int, seconds: float, now: datetime) -> None:
    """Publish so many messages, evenly over so many seconds."""
    pool = node.instance.pool
    subject = subjects.node_event(pool, node.name, "fault")
    for number in range(count):
        fault = Fault(
            id=f"{node.boot_id}.flood-{number}",
            time=now,
            pool=pool,
            node=node.name,
            kind="xid",
            code=HARMLESS_XID,
            subcode=str(number),
            message="flood",
        )
        try:
            data = encode(fault) if number % GARBAGE_EVERY else GARBAGE
            await node.process.bus.publish(subject, data)
        except BusError:
            pass  # a flood is not repeated
        await asyncio.sleep(seconds / count)
