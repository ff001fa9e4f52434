"""A process that consumes one durable, and ends without a word over one of its messages."""

import asyncio
import os
import sys
from datetime import timedelta

import msgspec

from schemas.node_events import node_codec
from schemas.settings import NatsSettings
from schemas.stream_specs import DurableSpec
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.primitives.clock import SystemClock
from services.runtime.consumer_loop import Consumer, ConsumerLoop, Received
from services.runtime.crash_guard import CrashGuard
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing

FATAL = "lost-7"
HANDLING = timedelta(milliseconds=20)


async def handle(received: Received) -> None:
    """Handle one event; others are under way when the fatal one ends the process."""
    if received.message.id == FATAL:
        os._exit(1)
    await asyncio.sleep(HANDLING.total_seconds())


async def main(url: str, spec: DurableSpec) -> None:
    """Consume for ever."""
    bus = await NatsBus.connect(ConnectOptions(settings=NatsSettings(url=url), name="crashing"))
    clock, instruments = SystemClock(), Instruments()
    replica = f"crashing-{os.getpid()}"
    guard = CrashGuard(bus, clock, "crashing", replica, instruments.failures, doubt_seconds=0.1)
    consumer = Consumer(
        durable=spec,
        decode=lambda stored: node_codec.decode(stored.data),
        handle=handle,
        key=lambda stored: stored.subject,
    )
    loop = ConsumerLoop(bus, consumer, clock, instruments, Tracing("crashing"), guard)
    await asyncio.gather(loop.run(), guard.run())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=DurableSpec)))
