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
from collections.abc import Callable
from typing import Final, NoReturn

from schemas.fleet_queries import CurrentFailure
from services.primitives.errors import NavarchError
from services.primitives.race import race
from services.runtime.failure_register import FailureRegister

log = logging.getLogger(__name__)

OBSERVER: Final = "configuration"
FAILURE: Final = "configuration-refused"
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
        self._requested = False
        self._changed = asyncio.Event()
        self._accepted = False
        self._ending = False

    @property
    def restarts(self) -> bool:
        """Whether the process is to execute its program again once it has ended its work."""
        return self._accepted and not self._ending

    def take_signals(self, stopping: asyncio.Event) -> None:
        """Take SIGHUP in the running loop; SIGTERM and SIGINT end the process in any case."""

        def end() -> None:
            self._ending = True
            stopping.set()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.request)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)

    def install(self) -> None:
        """Take note of SIGHUP from now on, until a loop does."""
        signal.signal(signal.SIGHUP, lambda *_: self.request())

    def request(self) -> None:
        """Have the configuration read again."""
        self._requested = True
        self._changed.set()

    async def watch(self, failures: FailureRegister | None, stopping: asyncio.Event) -> None:
        """Check the configuration at each request; set `stopping` when one is accepted."""
        while not self._accepted:
            while not self._requested:
                self._changed.clear()
                await self._changed.wait()
            self._requested = False
            await self._read(failures)
        if failures is not None:
            failures.update(OBSERVER, ())
            await race(failures.published(FAILURE), seconds_max=END_SECONDS_MAX)
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
                failure=FAILURE,
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
