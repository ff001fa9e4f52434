"""Runs a service's loops inside the test, on a real server, and stops them as abruptly as asked."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from schemas.settings import NatsSettings, Settings
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.primitives.clock import SystemClock
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.process import Build, Context
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing
from tests.support.fork_server import ForkServer

LOOK_SHARE = 4
"""A look is followed by so many times its own length without one."""


class Running:
    """Runs one replica of a service in this process, with a connection of its own."""

    def __init__(
        self, url: str, name: str, build: Build, settings: Settings, replica: int = 1
    ) -> None:
        """Not yet started."""
        self._url = url
        self._name = name
        self._build = build
        self._settings = settings
        self._replica = replica
        self._tasks: list[asyncio.Future[Any]] = []
        self._bus: NatsBus | None = None

    async def __aenter__(self) -> Self:
        """Start every loop."""
        self._bus = await NatsBus.connect(
            ConnectOptions(settings=NatsSettings(url=self._url), name=self._name)
        )
        context = Context(
            name=self._name,
            replica=f"{self._name}-{self._replica}",
            bus=self._bus,
            clock=SystemClock(),
            settings=self._settings,
            settings_file=None,
            instruments=Instruments(),
            tracing=Tracing(self._name),
        )
        service = await self._build(context)
        await self._bus.serve(self._name, service.description, service.endpoints)
        loops = [
            ConsumerLoop(self._bus, each, context.clock, context.instruments, context.tracing).run
            for each in service.consumers
        ]
        self._tasks = [asyncio.ensure_future(each()) for each in (*service.tasks, *loops)]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop, as SIGTERM would."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self._bus is not None
        await self._bus.close()


async def eventually(
    what: Callable[[], Awaitable[Any]], *, within_seconds: float = 60.0, every: float = 0.02
) -> Any:
    """Ask until the answer is true, and return it; the bound is what fails a test that hangs.

    Services run in the same process: a question that takes long is asked so much less often that it
    does not keep them from what it waits for.
    """
    found: Any = None
    clock = asyncio.get_running_loop().time
    with suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            began = clock()
            while not (found := await what()):
                # Between two looks at something without events.
                await asyncio.sleep(max(every, (clock() - began) * LOOK_SHARE))
                began = clock()
            return found
    raise AssertionError(f"not within {within_seconds:g} s; last answer: {found!r}")


async def command(url: str, *arguments: str) -> str:
    """Run `navarch` against a bus, as a process; return what it prints, or fail with its words."""
    status, out, err = await navarch(*arguments, NAVARCH_NATS_URL=url)
    assert status == 0, (arguments, out, err)
    return out


async def navarch(*arguments: str, cwd: Path | None = None, **more: str) -> tuple[int, str, str]:
    """Run `navarch` as a process; return its exit status, stdout and stderr.

    `more`: of its environment.
    """
    keep = {key: value for key, value in os.environ.items() if not key.startswith("NAVARCH_")}
    async with ForkServer() as fork_server:
        process = await fork_server.start(
            ("services.cli", *arguments), keep | more, cwd=cwd or path_of("."), separate=True
        )
        out, err = await process.communicate()
        return await process.wait(), out.decode(), err.decode()


def path_of(name: str) -> Path:
    """Return a file of the project's own, by its path in the checkout."""
    return Path(__file__).resolve().parents[2] / name
