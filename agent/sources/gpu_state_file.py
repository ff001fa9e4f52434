"""What an agent remembers over its own restarts: who the GPUs were, and what their counters said.

Without it a restart would tell old errors anew, and miss what happened while nobody looked. Written
in one stroke and seldom; a file that is missing, broken or too large means: nothing is remembered.
"""

import logging
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from schemas.messages import UtcTime
from schemas.node_events import GpuIdentity, GpuSample
from services.primitives.atomic_files import write_whole

log = logging.getLogger(__name__)

SAVE_SECONDS: Final = 5.0
"""Between two writes."""
FILE_BYTES_MAX: Final = 1_048_576
NOTICES_MAX: Final = 64


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the GPUs."""

    present: tuple[GpuIdentity, ...] = ()
    gone: tuple[GpuIdentity, ...] = ()
    """Seen before, and told as gone; who they are may still be asked."""
    counters: tuple[GpuSample, ...] = ()
    """The last counters and states of each; levels are left out."""
    troubled: tuple[tuple[int, str], ...] = ()
    """Index and kind of the troubles that have been told and last."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is remembered."""

    boot_id: str = ""
    time: UtcTime | None = None
    gpus: GpuMemory = GpuMemory()
    tested: bool = False
    """Whether this boot's checks of the hardware itself (memory, tools) have passed."""
    notices: tuple[str, ...] = ()
    """Ids of the cloud's notices that have been told."""

    def age_seconds(self, now: datetime) -> float:
        """How long ago this was true."""
        return (now - self.time).total_seconds() if self.time is not None else float("inf")


class MemoryFile:
    """Keeps a Memory, replaced in one stroke."""

    def __init__(self, path: Path) -> None:
        """Keep it at `path`."""
        self._path = path
        self._saved = Memory()
        self._saved_at = -SAVE_SECONDS

    def load(self) -> Memory:
        """Read what an earlier run left; an empty memory where there is none to use."""
        try:
            if self._path.stat().st_size > FILE_BYTES_MAX:
                raise ValueError(f"larger than {FILE_BYTES_MAX} bytes")  # noqa: TRY301
            self._saved = msgspec.json.decode(self._path.read_bytes(), type=Memory)
        except FileNotFoundError:
            return Memory()
        except (OSError, ValueError, RecursionError) as error:
            log.warning("cannot read %s, so nothing is remembered: %s", self._path, error)
            return Memory()
        return self._saved

    def save(self, memory: Memory, now: datetime, monotonic: float, *, last: bool = False) -> None:
        """Write what has changed, if the last write is long enough ago or this is the `last`."""
        unchanged = msgspec.structs.replace(memory, time=self._saved.time) == self._saved
        if unchanged and not last:
            return
        if monotonic - self._saved_at < SAVE_SECONDS and not last:
            return
        self._saved_at = monotonic
        memory = msgspec.structs.replace(memory, time=now)
        try:
            write_whole(self._path, msgspec.json.encode(memory))
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error)
            return
        self._saved = memory
