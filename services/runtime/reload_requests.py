"""The signals of a process: SIGTERM and SIGINT end it, SIGHUP requests a reload or is a hang-up.

A terminal that closes sends SIGHUP as well, itself or through the shell, and the process then has
lost the controlling terminal with which it was started. That ends the process in order. With
`nohup` it changes nothing.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from services.primitives.race import race

log = logging.getLogger(__name__)

TERMINAL: Final = "/dev/tty"
LOOK_SECONDS: Final = 1.0
"""Between two looks at the terminal: SIGHUP need not follow where the shell has disowned us."""
SETTLE_SECONDS: Final = 0.2
"""A shell that ends sends SIGHUP shortly before the terminal is lost."""
HANGUP_SECONDS: Final = 2.0
"""SIGHUP follows a lost terminal within this time; what comes later is a request."""


class ReloadRequests:
    """Reads what the signals of this process request.

    SIGHUP is taken from the construction on.
    """

    def __init__(self) -> None:
        """In the main thread."""
        self._nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._attached = has_terminal()
        self._signalled = asyncio.Event()
        self._requested = asyncio.Event()
        self.ended = False
        """Whether the process is to end."""
        signal.signal(signal.SIGHUP, lambda *_: self._signalled.set())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[asyncio.Event]:
        """Take the signals; what is given is set when the process is to end its work."""
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            self.ended = True
            stopping.set()

        loop.add_signal_handler(signal.SIGHUP, self._signalled.set)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        sorting = asyncio.create_task(self._sort(end))
        try:
            yield stopping
        finally:
            sorting.cancel()
            # The loop forgets its handlers when it ends; SIGHUP would then kill the process.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})

    def request(self) -> None:
        """Request a reload."""
        self._requested.set()

    async def next(self) -> None:
        """Wait for a request; several that wait are one."""
        await self._requested.wait()
        self._requested.clear()

    def hold_back(self) -> None:
        """Leave SIGHUP to the program that this process executes next, as it was found."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN if self._nohup else signal.SIG_DFL)

    async def _sort(self, end: Callable[[], None]) -> None:
        while True:
            looks = LOOK_SECONDS if self._attached else None
            await race(self._signalled.wait(), seconds_max=looks)
            await asyncio.sleep(SETTLE_SECONDS)
            lost = self._attached and not has_terminal()
            if lost:
                self._attached = False
                await race(self._signalled.wait(), seconds_max=HANGUP_SECONDS)
            signalled = self._signalled.is_set()
            self._signalled.clear()
            if lost and signalled and not self._nohup:
                log.info("the terminal was closed")
                end()
            elif lost:
                log.info("the terminal is gone; going on without it")
            elif signalled:
                self.request()


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal."""
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
