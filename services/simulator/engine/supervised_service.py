"""A service as one simulated process: started, killed and started again, as a supervisor would.

It is the same `build` that the real process runs, with a bus in memory and a clock in virtual time.
"""

import asyncio
import logging
from typing import Any, Final

from opentelemetry.sdk.trace.id_generator import IdGenerator

from schemas.settings import Settings
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.process import Build, Context
from services.runtime.process_metrics import Instruments
from services.runtime.server_clock import ServerClock
from services.runtime.tracing import Tracing
from services.simulator.engine.simulated_process import Life
from services.simulator.engine.simulation_context import World

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 0.25
AGAIN_SECONDS: Final = 1.0
"""A process that ended by itself is started again after this."""


class Ids(IdGenerator):
    """Trace and span ids from a seed."""

    def __init__(self, world: World, name: str) -> None:
        """Draw as `name`."""
        self._chance = world.chance(f"ids/{name}/{world.server.number()}")

    def generate_span_id(self) -> int:
        """A span's id."""
        return self._chance.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        """A trace's id."""
        return self._chance.getrandbits(128) or 1


class Supervised:
    """One replica of a service, kept running."""

    def __init__(self, world: World, name: str, build: Build, settings: Settings) -> None:
        """Run `build` as `name`; not yet started."""
        self.name = name
        self.defects: list[str] = []
        """Why it ended by itself, each time."""
        self.life: Life | None = None
        self._world = world
        self._build = build
        self._settings = settings
        self.starts = 0

    def start(self) -> None:
        """Start it, unless it runs, or all is over."""
        if self._world.server.closed or (self.life is not None and not self.life.dead):
            return
        self.starts += 1
        life = Life(self._world, self.name)
        self.life = life
        self._world.note(f"{self.name} starts")
        life.spawn(self._live(life))

    def crash(self) -> None:
        """Kill it."""
        if self.life is not None and not self.life.dead:
            self._world.note(f"{self.name} is killed")
            self.life.crash()

    async def _live(self, life: Life) -> None:
        try:
            await self._serve(life)
        except Exception as error:
            if life.dead:
                return
            text = f"{type(error).__name__}: {error}"
            log.info("%s ended by itself", self.name, exc_info=error)
            self._world.note(f"{self.name} ends by itself: {text}")
            self.defects.append(text)
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self.start)
            life.crash()

    async def _serve(self, life: Life) -> None:
        while not life.up:  # noqa: ASYNC110 - as the client does, at an interval
            # The real client connects before anything else, and waits for ever.
            await asyncio.sleep(CONNECT_SECONDS)
        instruments = Instruments()
        replica = f"{self.name}-{self.starts}".replace("/", "-")
        clock = ServerClock(life.bus, self._world.clock_of(self.name), instruments, replica)
        await clock.known()
        context = Context(
            name=self.name,
            replica=replica,
            bus=life.bus,
            clock=clock,
            settings=self._settings,
            settings_file=None,
            instruments=instruments,
            tracing=Tracing(self.name, ids=Ids(self._world, self.name)),
        )
        service = await self._build(context)
        await life.bus.serve(self.name, service.description, service.endpoints)
        loops: list[Any] = [
            ConsumerLoop(life.bus, each, context.clock, context.instruments, context.tracing).run
            for each in service.consumers
        ]
        tasks = [asyncio.ensure_future(each()) for each in (*loops, *service.tasks, clock.run)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        raise RuntimeError("a loop of the service ended by itself")
