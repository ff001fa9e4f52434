"""What one simulation shares: clock, randomness, server and history.

The services load the simulated cloud and workload system as plugins, which find their simulation
here.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable
from typing import Any, Final

from services.bus.memory.memory_server import MemoryServer
from services.bus.port import Stored
from services.simulator.engine.fatal_messages import FatalMessages
from services.simulator.engine.network_faults import NetworkFaults
from services.simulator.engine.run_history import RunHistory
from services.simulator.engine.virtual_time import VirtualClock

CURRENT_SIMULATION: contextvars.ContextVar["SimulationContext"] = contextvars.ContextVar(
    "simulation"
)
"""The simulation that the current task belongs to."""

FLEET: Final = "simulated"


class SimulationContext:
    """The context of one simulation."""

    def __init__(self, seed: str, history: RunHistory | None = None) -> None:
        self.seed = seed
        self.clock = VirtualClock()
        self.server = MemoryServer(self.clock)
        self.server.on_stored = self._on_stored
        self.history = history or RunHistory()
        self.network = NetworkFaults()
        self.fatal_messages = FatalMessages()
        self.watchers: list[Callable[[str, Stored], None]] = []
        """Called with stream and message after every write."""
        self.skew_seconds = 0.0
        """How wrong a clock can be, in seconds; the server's is right."""
        self.reconnected_at = 0.0
        """When a process last had its connection back, and began to read what it had missed."""
        self._clocks: dict[str, VirtualClock] = {}
        self.parts: dict[str, Any] = {}
        """Plugins look up `cloud` and `workload` here."""

    def chance(self, what: str) -> random.Random:
        """A random source for one use, independent of all others."""
        return random.Random(f"{self.seed}/{what}")  # noqa: S311 - repeatable is the point

    def clock_of(self, name: str) -> VirtualClock:
        """The clock of one host; its error stays the same over restarts."""
        if name not in self._clocks:
            skew = self.chance(f"clock/{name}").uniform(-self.skew_seconds, self.skew_seconds)
            self._clocks[name] = VirtualClock(skew)
        return self._clocks[name]

    def now(self) -> float:
        """Virtual seconds since the start."""
        return asyncio.get_running_loop().time()

    def note(self, what: str) -> None:
        """Add a line to the history."""
        self.history.note(self.now(), what)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        self.history.add_stored(self.now(), stream, stored)
        for each in self.watchers:
            each(stream, stored)
