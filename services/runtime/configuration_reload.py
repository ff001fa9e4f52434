"""The configuration is read again, and a valid one is put in force by a planned restart.

SIGHUP requests it, or the change of the file where `reload_on_change` is set. A process finishes
what it holds as on SIGTERM, and executes its program again under the same PID: every setting takes
effect by the one way in which settings are read. What is wrong with an invalid file is logged and
reported as a failure, and nothing changes. `navarch serve` restarts its processes itself, in an
environment that it computes again.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NoReturn

from schemas.fleet_queries import CurrentFailure
from schemas.settings import Settings
from services.primitives.errors import NavarchError
from services.primitives.race import race
from services.runtime.configuration_watch import ConfigurationWatch
from services.runtime.failure_register import FailureRegister
from services.runtime.reload_requests import ReloadRequests
from services.runtime.served_process import (
    RELOAD_STATUS,
    check_accepted,
    is_served,
    process_facts,
)
from services.settings.fixed_settings import check_fixed

log = logging.getLogger(__name__)

OBSERVER: Final = "configuration"
END_SECONDS_MAX: Final = 2.0
"""To publish the end of what was wrong before."""
REMEDY: Final = (
    "correct the file (`navarch config validate FILE` shows all that is wrong) and reload again; "
    "the configuration before it stays in force"
)


class ConfigurationReload:
    """Decides what the signals and the configuration's file request of one process."""

    def __init__(self, read: Callable[[], Settings], file: Path | None) -> None:
        """`read` raises NavarchError where the configuration is invalid."""
        self._requests = ReloadRequests()
        self._read = read
        self._file = file
        self._accepted = False
        self.facts = process_facts(file)
        """For the bus."""
        self.settings = read()
        """In force as long as the process runs."""
        self._watch = ConfigurationWatch(
            list(watched_files(self.settings, file)), self._requests.request
        )

    @property
    def restarts(self) -> bool:
        """Return whether the process is to be started again once it has ended its work."""
        return self._accepted and not self._requests.ended

    @asynccontextmanager
    async def watching(self, failures: FailureRegister | None) -> AsyncIterator[asyncio.Event]:
        """Take the signals of the process; what is given is set when it is to end its work.

        SIGTERM, SIGINT and a hang-up end the process in any case, a request to reload if the
        configuration is valid.
        """
        async with self._requests.taken() as stopping:
            tasks = [asyncio.create_task(self._reload(failures, stopping))]
            if self.settings.reload_on_change and not is_served():
                tasks.append(asyncio.create_task(self._watch.run()))
            try:
                yield stopping
            finally:
                for task in tasks:
                    task.cancel()

    def restart(self) -> NoReturn:
        """Be started again with the same arguments, by ourselves or by `navarch serve`."""
        if is_served():
            sys.exit(RELOAD_STATUS)
        self._requests.hold_back()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell

    async def _reload(self, failures: FailureRegister | None, stopping: asyncio.Event) -> None:
        while not self._accepted:
            await self._requests.next()
            await self._read_again(failures)
        if failures is not None:
            failures.update(OBSERVER, ())
            await race(failures.flushed(), seconds_max=END_SECONDS_MAX)
        digest = process_facts(self._file)["configuration"]
        log.info("the configuration is valid: restarting with it", extra={"configuration": digest})
        stopping.set()

    def _check(self) -> None:
        if is_served():
            check_accepted()
        else:
            check_fixed(self.settings, self._read(), self._file)

    async def _read_again(self, failures: FailureRegister | None) -> None:
        before, now = self.facts["configuration"], process_facts(self._file)["configuration"]
        log.info(
            "reading the configuration again", extra={"configuration": now, "in_force": before}
        )
        if now == before:
            log.warning("the configuration has the same text as before: %s", self._file)
        try:
            await asyncio.to_thread(self._check)
        except NavarchError as error:
            if failures is None:
                log.error("%s; %s", error, REMEDY)  # noqa: TRY400 - the text is the whole story
                return
            refused = CurrentFailure(
                failure="configuration-refused",
                about=str(self._file or "(defaults)"),
                reason=str(error),
                remedy=REMEDY,
            )
            failures.update(OBSERVER, [refused])
        else:
            self._accepted = True


def watched_files(settings: Settings, file: Path | None) -> Iterator[Path]:
    """The files of a configuration whose change is a change of it."""
    if file is None:
        return
    yield file
    if settings.health_policy:
        yield file.parent / Path(settings.health_policy).expanduser()
