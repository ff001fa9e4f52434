"""What everything in one simulation shares: clock, randomness, server, history.

Plugins of the services (the simulated cloud, the simulated workload system) are made by the
services themselves and find their simulation here.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable
from typing import Any, Final

from services.bus.memory.memory_server import MemoryServer
from services.bus.port import Stored
from services.simulator.engine.network_faults import NetworkFaults
from services.simulator.engine.run_history import RunHistory
from services.simulator.engine.virtual_time import VirtualClock

CURRENT_SIMULATION: contextvars.ContextVar["SimulationContext"] = contextvars.ContextVar(
    "simulation"
)
"""The simulation that the current task belongs to."""

FLEET: Final = "simulated"


class SimulationContext:
    """One simulation's surroundings."""

    def __init__(self, seed: str) -> None:
        """Draw everything from `seed`."""
        self.seed = seed
        self.clock = VirtualClock()
        self.server = MemoryServer(self.clock)
        self.server.on_stored = self._stored
        self.history = RunHistory()
        self.network = NetworkFaults()
        self.watchers: list[Callable[[str, Stored], None]] = []
        """Called with stream and message for whatever is stored."""
        self.skew_seconds = 0.0
        """Clocks but the server's are wrong by up to so much."""
        self._clocks: dict[str, VirtualClock] = {}
        self.parts: dict[str, Any] = {}
        """What plugins look up: `cloud`, `workload`."""

    def chance(self, what: str) -> random.Random:
        """A source of chance of its own for each use, so that one does not disturb another."""
        return random.Random(f"{self.seed}/{what}")  # noqa: S311 - repeatable is the point

    def clock_of(self, name: str) -> VirtualClock:
        """The clock of one host, wrong by the same in all its lives."""
        if name not in self._clocks:
            skew = self.chance(f"clock/{name}").uniform(-self.skew_seconds, self.skew_seconds)
            self._clocks[name] = VirtualClock(skew)
        return self._clocks[name]

    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return asyncio.get_running_loop().time()

    def note(self, what: str) -> None:
        """Write a line of the story."""
        self.history.note(self.now(), what)

    def _stored(self, stream: str, stored: Stored) -> None:
        self.history.stored(self.now(), stream, stored)
        for each in self.watchers:
            each(stream, stored)
