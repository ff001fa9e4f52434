"""The agent's state over restarts: GPU identities, counters and published notices.

Without it a restart would report old errors again and miss errors from the pause. Written
atomically and rarely; a missing, corrupt or too large file counts as empty.
"""

from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from agent.conditions.engine import Conditions
from agent.conditions.rdma_reader import RdmaPort
from agent.json_file import read_json, write_json
from agent.observations import GpuState
from schemas.value_limits import UtcTime

SAVE_SECONDS: Final = 5.0
"""Minimum interval between two writes."""
NOTICES_MAX: Final = 64


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is kept over restarts."""

    boot_id: str = ""
    time: UtcTime | None = None
    gpus: GpuState = GpuState()
    conditions: Conditions = Conditions()
    ports: dict[str, RdmaPort] = {}
    """RDMA ports that were up when the boot checks passed."""
    tested: bool = False
    """Whether this boot's tests have passed."""
    notices: tuple[str, ...] = ()
    """Digests of published notices."""

    def age_seconds(self, now: datetime) -> float:
        """Return the age of this state."""
        return (now - self.time).total_seconds() if self.time is not None else float("inf")


class AgentStateFile:
    """Stores an AgentState, atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved = AgentState()
        self._saved_at = -SAVE_SECONDS

    def load(self) -> AgentState:
        """Read the state of an earlier run; empty where it cannot be used."""
        self._saved = read_json(self._path, AgentState, AgentState())
        return self._saved

    def save(
        self, memory: AgentState, now: datetime, monotonic: float, *, last: bool = False
    ) -> None:
        """Write a changed state, at most every SAVE_SECONDS or if this is the `last` write."""
        unchanged = msgspec.structs.replace(memory, time=self._saved.time) == self._saved
        if unchanged and not last:
            return
        if monotonic - self._saved_at < SAVE_SECONDS and not last:
            return
        self._saved_at = monotonic
        memory = msgspec.structs.replace(memory, time=now)
        if write_json(self._path, memory):
            self._saved = memory
