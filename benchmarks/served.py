"""Several benchmarks run a server with the topology, a service, or a command that is timed."""

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from schemas.settings import NatsSettings
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock

READY_SECONDS_MAX: Final = 60.0


class Effort(NamedTuple):
    """Limits bound how much a measurement may do."""

    rounds: int
    seconds: float
    """No round begins that would end later, if it took as long as the last."""

    def numbers(self) -> Iterator[int]:
        """Number the rounds, of which there is at least one."""
        start = time.monotonic()
        for number in range(self.rounds):
            began = time.monotonic()
            yield number
            now = time.monotonic()
            if now - start + now - began > self.seconds:
                return


async def connect(url: str, name: str = "bench", **options: Any) -> NatsBus:
    """Connect with the services' own client."""
    return await NatsBus.connect(
        ConnectOptions(settings=NatsSettings(url=url), name=name, **options)
    )


@asynccontextmanager
async def serving(*, sync: bool = True) -> AsyncIterator[tuple[EmbeddedServer, NatsBus, Path]]:
    """Run a server with every stream; yield it, a connection and a directory."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as place:
        server = EmbeddedServer(Path(place) / "nats", sync=sync)
        await server.start()
        try:
            bus = await connect(server.url)
            try:
                await set_up(bus, SystemClock(), replicas=1)
                yield server, bus, Path(place)
            finally:
                await bus.close()
        finally:
            await server.stop()


@asynccontextmanager
async def service(
    module: str, url: str, config: Path, **environment: str
) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """Run a service; yield its process ID and the line with which it says that it is ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "--config", str(config)),
        env=os.environ | {"NAVARCH_NATS_URL": url} | environment,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    entry: dict[str, Any] = {}
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            while entry.get("msg") != "ready":
                entry = json.loads(await process.stderr.readline())
        reading = asyncio.create_task(process.stderr.read())
        yield process.pid, entry
        process.terminate()
        await reading
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended."""

    output: bytes
    seconds: float
    cpu_seconds: float


async def timed(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | int = asyncio.subprocess.PIPE,
) -> Ran:
    """Run Python with these arguments; RuntimeError where it fails."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments), env=os.environ | dict(environment or {}), stdout=output
    )
    printed, _ = await process.communicate()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise RuntimeError(f"{arguments} failed: {printed!r}")
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Ran(printed or b"", seconds, used)
