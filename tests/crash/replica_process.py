"""One replica of a service as a real process: started, killed, frozen, stopped, started again.

A process that ends without a request is started again, as `navarch serve` would, and recorded.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.support.fork_server import LINE_BYTES_MAX, ForkedProcess, ForkServer

ROOT: Final = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 15.0
BACKOFF_SECONDS: Final = 0.25


class Replica:
    """One process; `kill` and `freeze` take effect before they return."""

    def __init__(
        self,
        service: str,
        number: int,
        environment: Mapping[str, str],
        directory: Path,
        ended: Callable[[str], None],
        shift_seconds: float = 0.0,
        through: tuple[str, ...] = (),
        fork_server: ForkServer | None = None,
    ) -> None:
        """Do not start it yet; `ended` is called when it ends without a request.

        `shift_seconds`: how far ahead its clock is. `through`: a command that wraps it.
        `fork_server`: starts it without importing anything again.
        """
        self._through = through
        self._fork_server = fork_server
        self._program = (f"services.{service.replace('-', '_')}",)
        if shift_seconds:
            self._program = ("tests.crash.shifted_clock", service, str(shift_seconds))
        self.service = service
        self.name = f"{service}/{number}"
        self.started_at = 0.0
        self.began = asyncio.Event()
        """Set when it has been started again; cleared when it is struck."""
        self.ready = asyncio.Event()
        self._log = directory / f"{service}-{number}.log"
        self._environment = dict(environment)
        self._ended = ended
        self.code = ROOT
        """The release that the next start runs."""
        self._process: asyncio.subprocess.Process | ForkedProcess | None = None
        self._expected = False
        self._watching: asyncio.Task[None] | None = None

    @property
    def process(self) -> asyncio.subprocess.Process | ForkedProcess:
        """Return the current process, or the last one."""
        assert self._process is not None
        return self._process

    async def start(self) -> None:
        """Start it, without waiting until it is ready."""
        self.ready.clear()
        self._expected = False
        self.started_at = asyncio.get_running_loop().time()
        self._process = (
            await self._fork_server.start(self._program, self._environment)
            if self._fork_server
            else await self._executed()
        )
        self._watching = asyncio.create_task(self._watch(self._process))
        self.began.set()

    async def _executed(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(*self._through, sys.executable, "-m", *self._program),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
            cwd=self.code,
            limit=LINE_BYTES_MAX,
            start_new_session=True,
        )

    async def _watch(self, process: asyncio.subprocess.Process | ForkedProcess) -> None:
        assert process.stdout is not None
        with self._log.open("ab", buffering=0) as log:
            while line := await process.stdout.readline():
                log.write(line)
                if b'"msg": "ready"' in line:
                    self.ready.set()
        status = await process.wait()
        if not self._expected:
            said = (self.said("ERROR") or ["it logged no error"])[-1].strip()
            self._ended(f"{self.name} ended by itself with {status}: {said}")
            await asyncio.sleep(BACKOFF_SECONDS)
            await self.start()

    async def is_ready(self) -> None:
        """Wait until it is ready."""
        async with asyncio.timeout(READY_SECONDS_MAX):
            await self.ready.wait()

    def kill(self) -> None:
        """Kill the process with SIGKILL, at once."""
        self._strike(signal.SIGKILL)

    def terminate(self) -> None:
        """`kill -15`, now: finish the current work and end."""
        self._strike(signal.SIGTERM)

    def _strike(self, number: signal.Signals) -> None:
        self._expected = True
        self.began.clear()
        if self.process.returncode is None:
            # The process that forked it may have reaped it, and its report not have arrived.
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def freeze(self) -> None:
        """SIGSTOP: it does nothing and does not notice; messages queue up."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: let a frozen process continue."""
        if self.process.returncode is None:
            os.kill(self.process.pid, signal.SIGCONT)

    async def gone(self) -> int:
        """Wait until the struck process has ended; return its exit status."""
        async with asyncio.timeout(STOP_SECONDS_MAX):
            status = await self.process.wait()
            if self._watching is not None:
                await asyncio.wait({self._watching})
        return status

    async def stop(self) -> int:
        """Terminate it, or kill it if that takes too long."""
        self.terminate()
        try:
            return await self.gone()
        except TimeoutError:
            self.kill()
            return await self.gone()

    def said(self, level: str) -> list[str]:
        """Return the process's log lines of a level."""
        found = []
        for line in self._log.read_text("utf-8", "replace").splitlines():
            try:
                entry: Any = json.loads(line)
            except ValueError:
                found.append(line)
                continue
            if entry.get("level") == level:
                found.append(line)
        return found
