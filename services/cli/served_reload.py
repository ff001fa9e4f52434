"""`navarch serve` puts a changed configuration in force: checked whole, then process by process.

An invalid file changes nothing, and the pool-manager reports why, as what fails.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from schemas.settings import Settings
from services.cli.configuration_check import check_configuration, check_served_ports
from services.cli.supervisor import READY_SECONDS_MAX, Supervisor
from services.primitives.errors import NavarchError
from services.primitives.race import race
from services.runtime.configuration_reload import REMEDY, watched_files
from services.runtime.configuration_watch import (
    ConfigurationWatch,
    content_digest,
    digest_of,
)
from services.runtime.http_listener import check_port
from services.runtime.reload_requests import ReloadRequests
from services.runtime.served_process import ReloadState
from services.settings.configuration_text import read_text
from services.settings.fixed_settings import check_fixed
from services.settings.plugin_loader import NO_FILE
from services.settings.settings_file import DEFAULTS, parse_settings


class Reloadable(Protocol):
    """A fleet that is served."""

    settings: Settings
    config: Path | None
    supervisor: Supervisor
    reload: ReloadState

    def take(self, settings: Settings, text: str) -> None:
        """Give them to every process that starts from now on; NavarchError where that cannot be.

        `text`: of their file.
        """

    def publish(self, reload: ReloadState) -> None:
        """Let other processes read it."""


class ServedReload:
    """Reloads a served fleet after SIGHUP, or after the change of a file."""

    def __init__(
        self,
        serving: Reloadable,
        requests: ReloadRequests,
        environment: Mapping[str, str],
        log: Callable[[str, str], None],
    ) -> None:
        """`log` takes a level and a text."""
        self._serving = serving
        self._requests = requests
        self._environment = environment
        self._log = log

    async def run(self) -> None:
        """Reload at each request."""
        watch = self._watch()
        while True:
            await self._requested(watch)
            # What changes from here on is another request.
            watch = self._watch()
            await self._reload()

    async def _requested(self, watch: ConfigurationWatch) -> None:
        waiting = [self._requests.next()]
        if self._serving.settings.reload_on_change:
            waiting.append(watch.run())
        for task in await race(*waiting):
            if not task.cancelled():
                task.result()

    def _watch(self) -> ConfigurationWatch:
        files = list(watched_files(self._serving.settings, self._serving.config))
        return ConfigurationWatch(files, self._requests.request)

    async def _reload(self) -> None:
        serving, state = self._serving, self._serving.reload
        finished, file, text = state.finished + 1, serving.config, DEFAULTS
        self._log("INFO", "reading the configuration again")
        try:
            if file is not None:
                text = read_text(file)
            settings = await asyncio.to_thread(self._checked, text)
            serving.take(settings, text)
        except NavarchError as error:
            problem, refused = str(error), content_digest(text.encode())
            state = msgspec.structs.replace(state, refused=refused, problem=problem)
            serving.publish(msgspec.structs.replace(state, finished=finished))
            self._log("ERROR", f"{error}; {REMEDY}")
            serving.supervisor.report()
            return
        in_force = content_digest(text.encode())
        if file is not None and digest_of([file]) != in_force:
            self._requests.request()
        self._log("INFO", "the configuration is valid: restarting each process with it")
        serving.publish(ReloadState(finished=state.finished, in_force=in_force))
        late = await serving.supervisor.renew()
        serving.publish(ReloadState(finished=finished, in_force=in_force, late=late))
        if late:
            what = "the processes after it keep the configuration before: reload again"
            self._log("ERROR", f"{late} is not ready after {READY_SECONDS_MAX:g} s; {what}")
        else:
            self._log("INFO", "every process runs with the configuration")

    def _checked(self, text: str) -> Settings:
        before, file = self._serving.settings, self._serving.config
        after = parse_settings(str(file or NO_FILE), text, self._environment)
        check_fixed(before, after, file)
        check_configuration(after, file)
        check_served_ports(after, file)
        if (before.http.host, before.http.port) != (after.http.host, after.http.port):
            check_port(after.http, file)
        return after
