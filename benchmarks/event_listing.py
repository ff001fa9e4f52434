"""Events per second that `navarch events --since` prints, by the processor time that it uses.

The floor of each round is a process that reads the same events with the same client and writes
their bytes as they are.
"""

import asyncio
import sys
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.comparison import medians
from benchmarks.served import Effort, connect, serving, timed
from schemas import subjects
from schemas.event_subjects import event_subject
from schemas.messages import encode
from schemas.node_events import Fault
from schemas.topology import EVENTS as STREAM
from services.bus.nats.nats_bus import NatsBus

EVENTS = 50_000
NODES = 200
AT_ONCE = 500
EFFORT: Final = Effort(3, 120.0)


async def measure() -> dict[str, Any]:
    """Store faults, then print all of them into a file, by the command and by the floor."""
    async with serving(sync=False) as (server, bus, place):
        await _fill(bus)
        command = ("-m", "services.cli", "events", "--since", "1h", "--count", str(EVENTS))
        floor = ("-m", "benchmarks.event_listing", server.url)
        return medians(
            [
                (await _print(server.url, place, *command), await _print("", place, *floor))
                for _ in EFFORT.numbers()
            ]
        )


async def _fill(bus: NatsBus) -> None:
    for first in range(0, EVENTS, AT_ONCE):
        faults = [
            Fault(
                id=f"fault-{number}",
                time=datetime.now(UTC),
                pool="training",
                node=f"node-{number % NODES}",
                kind="xid",
                code=13,
                message="NVRM: Xid (PCI:0000:3b:00): 13, pid=123, name=python, Graphics Exception",
            )
            for number in range(first, first + AT_ONCE)
        ]
        await asyncio.gather(
            *(bus.publish(event_subject(each), encode(each), msg_id=each.id) for each in faults)
        )


async def _print(url: str, place: Path, *arguments: str) -> dict[str, float]:
    with (place / "printed").open("wb") as output:
        ran = await timed(*arguments, output=output, environment={"NAVARCH_NATS_URL": url})
    return {
        "events_printed_per_second": round(EVENTS / ran.seconds),
        "events_printed_per_cpu_second": round(EVENTS / ran.cpu_seconds),
    }


async def _floor(url: str) -> None:
    """Write every event as it is stored, a line each."""
    bus = await connect(url, "floor")
    left = EVENTS
    following = bus.follow(STREAM.name, [subjects.NODE_EVENTS], "all")
    async with aclosing(following):  # type: ignore[type-var]
        async for stored in following:
            sys.stdout.buffer.write(stored.data + b"\n")
            left -= 1
            if not left:
                break
    await bus.close()


if __name__ == "__main__":
    uvloop.run(_floor(sys.argv[1]))
