"""SIGHUP: the configuration is read again, and a valid one is put in force by a planned restart.

A process finishes what it holds as on SIGTERM, and executes its program again under the same PID:
every setting takes effect by the one way in which settings are read. What is wrong with an invalid
file is logged and reported as a failure, and nothing changes.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NoReturn

from schemas.fleet_queries import CurrentFailure
from services.primitives.errors import NavarchError
from services.primitives.race import race
from services.runtime.failure_register import FailureRegister

log = logging.getLogger(__name__)

OBSERVER: Final = "configuration"
END_SECONDS_MAX: Final = 2.0
"""To publish the end of what was wrong before."""
REMEDY: Final = (
    "correct the file (`navarch config validate FILE` shows all that is wrong) and reload again; "
    "the configuration before it stays in force"
)


class ConfigurationReload:
    """What SIGHUP requests of one process."""

    def __init__(self, check: Callable[[], object], about: str) -> None:
        """`check` reads the configuration, and raises NavarchError where it is invalid.

        `about`: the file's name.
        """
        self._check = check
        self._about = about
        self._requested = asyncio.Event()
        self._accepted = False
        self._ending = False

    @property
    def restarts(self) -> bool:
        """Whether the process is to execute its program again once it has ended its work."""
        return self._accepted and not self._ending

    def install(self) -> None:
        """Take note of SIGHUP from now on, until `watching` does."""
        signal.signal(signal.SIGHUP, lambda *_: self._requested.set())

    @asynccontextmanager
    async def watching(self, failures: FailureRegister | None) -> AsyncIterator[asyncio.Event]:
        """Take the signals of the process; what is given is set when it is to end its work.

        SIGTERM and SIGINT end the process in any case, SIGHUP if the configuration is valid.
        """
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            self._ending = True
            stopping.set()

        loop.add_signal_handler(signal.SIGHUP, self._requested.set)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        watching = asyncio.create_task(self._watch(failures, stopping))
        try:
            yield stopping
        finally:
            watching.cancel()

    async def _watch(self, failures: FailureRegister | None, stopping: asyncio.Event) -> None:
        while not self._accepted:
            await self._requested.wait()
            self._requested.clear()
            await self._read(failures)
        if failures is not None:
            failures.update(OBSERVER, ())
            await race(failures.flushed(), seconds_max=END_SECONDS_MAX)
        log.info("the configuration is valid: restarting with it")
        stopping.set()

    async def _read(self, failures: FailureRegister | None) -> None:
        log.info("SIGHUP: reading the configuration again")
        try:
            await asyncio.to_thread(self._check)
        except NavarchError as error:
            if failures is None:
                log.error("%s; %s", error, REMEDY)  # noqa: TRY400 - the text is the whole story
                return
            refused = CurrentFailure(
                failure="configuration-refused",
                about=self._about,
                reason=str(error),
                remedy=REMEDY,
            )
            failures.update(OBSERVER, [refused])
        else:
            self._accepted = True


def execute_again() -> NoReturn:
    """Replace this process by its program, started with the same arguments."""
    # Ignored across the execution, until the program takes it: it reads the file after that.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell
