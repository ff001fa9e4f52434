"""A simulated process: its connection, its effects in order, and its crash.

A crash ends every task of the process between two effects: what was stored before stays, and
nothing follows. The remaining tasks of a dead process reach nothing.
"""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, Final

from schemas.topology import LEASES
from services.bus.memory.memory_bus import MemoryBus
from services.primitives.errors import Unavailable
from services.simulator.engine.simulation_context import CURRENT_SIMULATION, SimulationContext
from services.simulator.engine.virtual_time import TASK_OWNER, TaskOwner

LATENCY_SECONDS_MAX: Final = 0.004
"""Of an ordinary call, each way."""
TIMEOUT_SECONDS: Final = 5.0
"""How long a caller waits for what never arrives."""
RENEWALS: Final = f"$KV.{LEASES.name}."
"""Lease renewals, once a second, do not count as effects."""
STEP_SECONDS: Final = 0.000_001
"""Between two deliveries over one connection: they stay in order."""


class SimulatedProcess(TaskOwner):
    """One process from its start to its end."""

    def __init__(self, simulation: SimulationContext, name: str) -> None:
        super().__init__()
        self.simulation = simulation
        self.name = name
        self.dead = False
        self.effects = 0
        self.dies_after: int | None = None
        """The effect that is its last."""
        self.stalls_after: tuple[int, float] | None = None
        """The effect after which it stalls, and for how many seconds."""
        self.stalled: Callable[[], None] | None = None
        """Called when it stalls."""
        self._stalled_until = 0.0
        self.died: Callable[[], None] | None = None
        """Called when it crashes."""
        self._number = simulation.server.number()
        self._arrival = 0.0
        self._was_up = self.up
        context = contextvars.copy_context()
        context.run(TASK_OWNER.set, self)
        context.run(CURRENT_SIMULATION.set, simulation)
        self.context = context
        self.bus: MemoryBus = context.run(MemoryBus, simulation.server, self)

    @cached_property
    def _chance(self) -> random.Random:
        """Random source of its connection; made only when needed."""
        return self.simulation.chance(f"link/{self.name}/{self._number}")

    def spawn(self, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        """Do work as this process."""
        return asyncio.get_running_loop().create_task(_await(work), context=self.context)

    def crash(self) -> None:
        """End now, wherever its tasks are."""
        if self.dead:
            return
        self.dead = True
        self.bus.disconnected()
        self.simulation.server.silence(self.bus.context)
        for task in list(self.tasks):
            task.cancel()
        if self.died is not None:
            self.died()

    async def effect(self, what: str) -> None:
        """Count an effect outside of the process, and crash where it was to be the last."""
        self.effects += 1
        if self.dies_after is not None and self.effects >= self.dies_after and not self.dead:
            self.simulation.note(f"{self.name} dies after {what}")
            self.crash()
        if self.stalls_after is not None and self.effects >= self.stalls_after[0]:
            self.simulation.note(f"{self.name} stalls after {what}")
            self.stall(self.stalls_after[1])
        await self.alive()

    @property
    def stalled_now(self) -> bool:
        """Whether it stalls."""
        return self._stalled_until > self.simulation.now()

    def stall(self, seconds: float) -> None:
        """Make no call, and get no answer and no delivery, for a while."""
        self.stalls_after = None
        self._stalled_until = self.simulation.now() + seconds
        if self.stalled is not None:
            self.stalled()

    async def alive(self) -> None:
        """Cancel the current task if the process is dead."""
        self._alive()

    def _alive(self) -> None:
        if self.dead:
            raise asyncio.CancelledError

    def update_connection(self) -> None:
        """The connection was cut, or is back."""
        if self.up != self._was_up:
            self._was_up = self.up
            if self.up:
                self.simulation.reconnected_at = self.simulation.now()
                self.bus.reconnected()
            else:
                self.bus.disconnected()

    # --- the connection ---------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Whether the server can be reached now."""
        return not self.dead and not self.simulation.network.is_cut(self.name)

    async def there(self, call: str, about: str) -> None:
        """Bring a request to the server; Unavailable where it never arrives."""
        del call
        self._alive()
        if self.stalled_now:
            await self._running()
        network, chance = self.simulation.network, self._chance
        seconds = chance.random() * LATENCY_SECONDS_MAX
        if slow := network.slow.get(self.name):
            seconds += chance.random() * slow
        await asyncio.sleep(seconds)
        self._alive()
        if (share := network.lost_requests.get(self.name)) and chance.random() < share:
            await self._lose(about)
        if not self.up:
            raise Unavailable(f"{about}: the connection was lost")

    async def back(self, call: str, about: str) -> None:
        """Bring the answer back; Unavailable where it is lost."""
        if call == "store" and not about.startswith(RENEWALS):
            await self.effect(about)
        self._alive()
        if self.stalled_now:
            await self._running()
        network, chance = self.simulation.network, self._chance
        if not self.up:
            raise Unavailable(f"{about}: the connection was lost")
        if (share := network.lost_answers.get(self.name)) and chance.random() < share:
            await self._lose(about)

    async def _running(self) -> None:
        """Wait for the end of a stall."""
        while (left := self._stalled_until - self.simulation.now()) > 0:
            await asyncio.sleep(left)
            self._alive()

    async def _lose(self, about: str) -> None:
        await asyncio.sleep(TIMEOUT_SECONDS)
        await self.alive()
        raise Unavailable(f"{about}: no answer in {TIMEOUT_SECONDS:g} s")

    def settles(self, word: str, about: str) -> bool:
        """Whether an acknowledgement, which no caller waits for, arrives."""
        del word, about
        share = self.simulation.network.lost_acks.get(self.name, 0.0)
        return not share or self._chance.random() >= share

    def arrives(self, about: str, hand_over: Callable[[], None]) -> None:
        """Hand a delivery over a little later, after those before it."""
        del about
        loop = asyncio.get_running_loop()
        at = loop.time() + self._chance.random() * LATENCY_SECONDS_MAX
        self._arrival = max(at, self._arrival + STEP_SECONDS, self._stalled_until)
        loop.call_at(self._arrival, hand_over, context=self.context)


def current_process() -> SimulatedProcess:
    """The process that the current task belongs to."""
    process = TASK_OWNER.get()
    assert isinstance(process, SimulatedProcess)
    return process


async def _await(work: Awaitable[Any]) -> Any:
    return await work
