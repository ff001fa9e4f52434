"""Destroys what a running fleet has stored: streams, buckets and durables, one at a time.

Each is deleted, purged, or rolled back: the server is stopped and gets an earlier copy of the
stream's directory. What must hold afterwards is in `destroy_rounds`.
"""

import os
import random
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from schemas.topology import BUCKETS, DURABLES, HEARTBEATS, OBJECT_BUCKETS, STREAMS
from tests.crash.rig import Rig

Way = Literal["delete", "purge", "roll back"]

STREAM_NAMES: Final = (
    *(each.name for each in STREAMS),
    *(each.stream().name for each in (*BUCKETS, *OBJECT_BUCKETS)),
)
DURABLE_NAMES: Final = tuple(f"{each.stream}.{each.name}" for each in DURABLES)


@dataclass(frozen=True, slots=True)
class Destruction:
    """One thing that is destroyed, and when."""

    target: str
    """A stream, or `STREAM.durable`."""
    way: Way
    at_seconds: float = 0.0
    """After the node broke."""

    def __str__(self) -> str:
        """Write `roll back KV_NODES at 120 ms`."""
        return f"{self.way} {self.target} at {self.at_seconds * 1000:.0f} ms"


ALL: Final[tuple[tuple[str, Way], ...]] = (
    *((name, "delete") for name in (*STREAM_NAMES, *DURABLE_NAMES)),
    *((name, "purge") for name in STREAM_NAMES),
    *((name, "roll back") for name in STREAM_NAMES if name != f"KV_{HEARTBEATS.name}"),
)


def draw_destruction(chance: random.Random, span_seconds: float) -> Destruction:
    """Draw what is destroyed, how, and when."""
    target, way = chance.choice(ALL)
    return Destruction(target, way, chance.uniform(0, span_seconds))


class Destroyer:
    """Destroys what one server stores."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._streams = rig.directory / "nats" / "js" / "jetstream" / "$G" / "streams"
        self._copy = rig.directory / "earlier"

    def keep_copy(self) -> None:
        """Copy what is stored now, as it would be after a power cut."""
        shutil.rmtree(self._copy, ignore_errors=True)
        os.kill(self._rig.server.pid, signal.SIGSTOP)
        try:
            shutil.copytree(self._streams, self._copy)
        finally:
            os.kill(self._rig.server.pid, signal.SIGCONT)

    async def destroy(self, destruction: Destruction) -> None:
        """Destroy it; the server runs afterwards."""
        target = destruction.target
        match destruction.way:
            case "delete":
                kind = "CONSUMER" if "." in target else "STREAM"
                await self._rig.bus.admin(f"{kind}.DELETE.{target}", {})
            case "purge":
                await self._rig.bus.admin(f"STREAM.PURGE.{target}", {})
            case "roll back":
                await self._rig.server.stop()
                _replace(self._streams / target, self._copy / target)
                await self._rig.server.start()


def _replace(place: Path, earlier: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(earlier, place)
