"""A service as a simulated process: started, killed and restarted, as a supervisor does.

It is the `build` of the real process, on the in-memory bus and in virtual time.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from opentelemetry.sdk.trace.id_generator import IdGenerator

from schemas.permissions import durables_of
from schemas.settings import Settings
from services.bus.topology_setup import set_up
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.runtime.consumer_loop import Consumer, ConsumerLoop, Received
from services.runtime.process import Build, Context, built, guard_of, with_failures
from services.runtime.process_metrics import Instruments
from services.runtime.server_clock import ServerClock
from services.runtime.tracing import Tracing
from services.simulator.engine.simulation_context import SimulatedProcess, SimulationContext

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 0.25
AGAIN_SECONDS: Final = 1.0
"""Until a process that ended by itself is restarted."""


class SeededIds(IdGenerator):
    """Trace and span IDs from the seed."""

    def __init__(self, simulation: SimulationContext, name: str) -> None:
        self._chance = simulation.chance(f"ids/{name}/{simulation.server.number()}")

    def generate_span_id(self) -> int:
        """Return a span's ID."""
        return self._chance.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        """Return a trace's ID."""
        return self._chance.getrandbits(128) or 1


class SupervisedService:
    """One replica of a service, kept running."""

    def __init__(
        self, simulation: SimulationContext, name: str, build: Build, settings: Settings
    ) -> None:
        self.name = name
        self.defects: list[str] = []
        """Why it ended by itself, each time."""
        self.process: SimulatedProcess | None = None
        self._simulation = simulation
        self._build = build
        self._settings = settings
        self.starts = 0

    def start(self) -> None:
        """Start it, unless it runs or the simulation has ended."""
        if self._simulation.server.closed or (self.process is not None and not self.process.dead):
            return
        self.starts += 1
        process = SimulatedProcess(self._simulation, self.name)
        self.process = process
        self._simulation.note(f"{self.name} starts")
        process.spawn(self._live(process))

    def reconfigure(self, settings: Settings) -> None:
        """Restart it with other settings."""
        self._settings = settings
        self.crash()
        self.start()

    def crash(self) -> None:
        """Kill the process."""
        if self.process is not None and not self.process.dead:
            self._simulation.note(f"{self.name} is killed")
            self.process.crash()

    def _with_fatal(self, process: SimulatedProcess, consumer: Consumer) -> Consumer:
        """The consumer, ended with its process by fatal messages."""

        async def handle(received: Received[Any]) -> None:
            service, durable = self.name.partition("/")[0], consumer.durable
            fatal = self._simulation.fatal_messages
            if fatal.end_process(service, durable.name, durable.stream, received.stored):
                self._simulation.note(f"{self.name} dies over {received.stored.subject}")
                process.died = lambda: _later(AGAIN_SECONDS, self.start)
                process.crash()
                await process.alive()
            await consumer.handle(received)

        return replace(consumer, handle=handle)

    async def _live(self, process: SimulatedProcess) -> None:
        try:
            await self._serve(process)
        except Exception as error:
            if process.dead:
                return
            text = f"{type(error).__name__}: {error}"
            log.info("%s ended by itself", self.name, exc_info=error)
            self._simulation.note(f"{self.name} ends by itself: {text}")
            self.defects.append(text)
            _later(AGAIN_SECONDS, self.start)
            process.crash()

    async def _serve(self, process: SimulatedProcess) -> None:
        while not process.up:  # noqa: ASYNC110 - as the client does, at an interval
            # The real client connects first, and waits until it can.
            await asyncio.sleep(CONNECT_SECONDS)
        instruments = Instruments()
        replica = f"{self.name}-{self.starts}".replace("/", "-")
        own = self._simulation.clock_of(self.name)
        await self._set_up(process, own)
        clock = ServerClock(process.bus, own, instruments)
        await clock.known()
        context = Context(
            name=self.name,
            replica=replica,
            bus=process.bus,
            clock=clock,
            settings=self._settings,
            settings_file=None,
            instruments=instruments,
            tracing=Tracing(self.name, ids=SeededIds(self._simulation, self.name)),
        )
        guard = guard_of(context)
        service = with_failures(context, await built(self._build, context), clock.run, guard.run)
        await process.bus.serve(self.name, service.description, service.endpoints)
        loops: list[Any] = [
            ConsumerLoop(
                *(process.bus, self._with_fatal(process, each), context.clock),
                *(context.instruments, context.tracing, guard),
            ).run
            for each in service.consumers
        ]
        tasks = [asyncio.ensure_future(each()) for each in (*loops, *service.tasks)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        raise RuntimeError("a loop of the service ended by itself")

    async def _set_up(self, process: SimulatedProcess, clock: Clock) -> None:
        """Create what is missing of the topology, as each process does when it starts."""
        name = self.name.partition("/")[0]
        while True:
            try:
                await set_up(process.bus, clock, replicas=1, durables=durables_of(name))
            except BusError as error:
                log.info("%s does not start yet: %s", self.name, error)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return


def _later(seconds: float, action: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, action)
