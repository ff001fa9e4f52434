"""One replica of a service as a real process: started, killed, frozen, stopped, started again.

What ends without having been told to is started again, as `navarch serve` would, and is noted.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 15.0
BACKOFF_SECONDS: Final = 0.25
LINE_BYTES_MAX: Final = 1 << 20


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
    ) -> None:
        """Not yet started; `ended` is told of an end that nobody asked for.

        `shift_seconds`: how fast the clock of its machine is. `through`: the command that starts
        it, where it is not started by itself.
        """
        self._through = through
        self._program = (f"services.{service.replace('-', '_')}",)
        if shift_seconds:
            self._program = ("tests.crash.shifted", service, str(shift_seconds))
        self.service = service
        self.name = f"{service}/{number}"
        self.started_at = 0.0
        self.began = asyncio.Event()
        """Set once it has been started anew; cleared when it is struck."""
        self.ready = asyncio.Event()
        self._log = directory / f"{service}-{number}.log"
        self._environment = dict(environment)
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._expected = False
        self._watching: asyncio.Task[None] | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process that it is now, or was last."""
        assert self._process is not None
        return self._process

    async def start(self) -> None:
        """Start it, without waiting until it is ready."""
        self.ready.clear()
        self._expected = False
        self.started_at = asyncio.get_running_loop().time()
        self._process = await asyncio.create_subprocess_exec(
            *(*self._through, sys.executable, "-m", *self._program),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
            cwd=ROOT,
            limit=LINE_BYTES_MAX,
            start_new_session=True,
        )
        self._watching = asyncio.create_task(self._watch(self._process))
        self.began.set()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with self._log.open("ab", buffering=0) as log:
            while line := await process.stdout.readline():
                log.write(line)
                if b'"msg": "ready"' in line:
                    self.ready.set()
        status = await process.wait()
        if not self._expected:
            self._ended(f"{self.name} ended by itself with {status}")
            await asyncio.sleep(BACKOFF_SECONDS)
            await self.start()

    async def is_ready(self) -> None:
        """Wait until it works."""
        async with asyncio.timeout(READY_SECONDS_MAX):
            await self.ready.wait()

    def kill(self) -> None:
        """`kill -9`, now."""
        self._strike(signal.SIGKILL)

    def terminate(self) -> None:
        """`kill -15`, now: the order to finish what it holds and to end."""
        self._strike(signal.SIGTERM)

    def _strike(self, number: signal.Signals) -> None:
        self._expected = True
        self.began.clear()
        if self.process.returncode is None:
            os.kill(self.process.pid, number)

    def freeze(self) -> None:
        """Let it do nothing more, and not notice; what it is sent from now on it holds."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen one go on."""
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
        """End it in order, or else for good."""
        self.terminate()
        try:
            return await self.gone()
        except TimeoutError:
            self.kill()
            return await self.gone()

    def said(self, level: str) -> list[str]:
        """Its log lines of a level."""
        found = []
        for line in self._log.read_text("utf-8", "replace").splitlines():
            try:
                told: Any = json.loads(line)
            except ValueError:
                found.append(line)
                continue
            if told.get("level") == level:
                found.append(line)
        return found
