"""Compares a configuration with the fleet that runs, and puts it in force on this host."""

import asyncio
import fcntl
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from schemas.pool_records import PoolRecord
from services.cli.bus_client import connect_fleet
from services.cli.configuration_check import check_file
from services.cli.fleet_discovery import (
    LOCK_FILE,
    SERVE_FILE,
    ServeState,
    find_bus,
    read_serve_state,
)
from services.cli.plugin_options import loaded_options
from services.cli.service_replies import Replica, every_replica
from services.primitives.errors import NavarchError
from services.runtime.configuration_watch import content_digest
from services.runtime.served_process import COPY_FILE, DIGITS
from services.settings.configuration_text import read_text
from services.settings.fixed_settings import check_fixed
from services.settings.pool_differences import (
    PoolDifference,
    SettingChange,
    pool_differences,
    value_changes,
)
from services.settings.setting_origins import explain
from services.settings.settings_file import Configuration, inspect_configuration, read_file
from services.settings.stored_pools import spec_to_store
from services.settings.yaml_document import read_document

POOLS: Final = "pools."
LOOK_SECONDS: Final = 0.1
SECONDS_MAX: Final = 900.0
"""For one process after the other, each of which may take a minute."""


class ReloadRefusedError(NavarchError):
    """The fleet that runs does not take the file."""


class ConfigurationChange(NamedTuple):
    """A file that was checked, and what it changes."""

    file: Path
    text: str
    served: ServeState | None
    """Of this host's `navarch serve`; None: the processes run without one, or elsewhere."""
    pools: tuple[PoolDifference, ...]
    settings: tuple[SettingChange, ...]
    """Outside the pools; only serve knows what is in force."""
    replicas: tuple[Replica, ...]

    @property
    def is_different(self) -> bool:
        """Return whether a value changes."""
        return bool(self.pools or self.settings)

    @property
    def is_in_force(self) -> bool:
        """Return whether serve's processes have exactly this text."""
        return self.served is not None and self.served.reload.in_force == self.digest

    @property
    def digest(self) -> str:
        """Return the digest of a text."""
        return content_digest(self.text.encode())

    @property
    def text_id(self) -> str:
        """Return the beginning of the digest, as logs and processes have it."""
        return self.digest[:DIGITS]

    @property
    def others(self) -> tuple[Replica, ...]:
        """The processes that run with another text."""
        return tuple(each for each in self.replicas if each.configuration != self.text_id)


def read_change(file: Path, nats_url: str, config: Path | None) -> ConfigurationChange:
    """Check a file and compare it with the fleet; NavarchError where it is invalid.

    `config`: the file of the fleet, where that is another.
    """
    configuration = check_file(file, os.environ)
    settings = configuration.settings
    there = inspect_configuration(read_file(config), os.environ).settings if config else settings
    served = None if nats_url else read_serve_state(Path(there.data_dir) / SERVE_FILE)
    before = _in_force(served, file) if served is not None else None
    changes: tuple[SettingChange, ...] = ()
    if before is not None:
        check_fixed(before.settings, settings, file)
        changes = tuple(value_changes(_values(before, file), _values(configuration, file)))

    async def read() -> tuple[list[PoolRecord], tuple[Replica, ...]]:
        async with connect_fleet(find_bus(nats_url, config or file)) as fleet:
            return await fleet.pool_records(), await every_replica(fleet)

    records, replicas = asyncio.run(read())
    specs = {name: spec_to_store(settings, name) for name in settings.pools}
    pools = pool_differences(records, specs)
    return ConfigurationChange(file, read_text(file), served, pools, changes, replicas)


def _in_force(served: ServeState, file: Path) -> Configuration:
    """The configuration of serve's processes."""
    if not served.config:
        raise NavarchError(
            f"navarch serve (pid {served.pid}) runs without a configuration: start it again with "
            f"--config {file}"
        )
    text = read_text(Path(served.directory) / COPY_FILE)
    # As far as it can be read here: a variable may be set for serve alone.
    return inspect_configuration(read_document(str(file), text), os.environ)


def _values(configuration: Configuration, file: Path) -> Mapping[str, str]:
    options = loaded_options(configuration.settings, file)
    values = explain(configuration, os.environ, options)
    found = ((".".join(map(str, each.path)), each.value) for each in values)
    return {key: value for key, value in found if not key.startswith(POOLS)}


def put_in_force(change: ConfigurationChange, served: ServeState) -> str:
    """Let this host's serve reload; what is returned is a process that was not ready in time.

    NavarchError: serve refuses it, and its file is as it was.
    """
    directory = Path(served.directory)
    require_running(directory)
    target = Path(served.config)
    former = replace_file(target, change.file)
    try:
        return asyncio.run(_reload(served, directory / SERVE_FILE, change.digest))
    except ReloadRefusedError:
        if former is not None:
            write_like(target, former)
            os.kill(served.pid, signal.SIGHUP)
        raise


async def _reload(served: ServeState, file: Path, wanted: str) -> str:
    try:
        os.kill(served.pid, signal.SIGHUP)
    except PermissionError as error:
        raise NavarchError(
            f"navarch serve (pid {served.pid}) is another user's: send it SIGHUP as that user"
        ) from error
    async with asyncio.timeout(SECONDS_MAX):
        while (now := read_serve_state(file)) is not None:
            if now.reload.finished > served.reload.finished:
                if now.reload.refused == wanted:
                    raise ReloadRefusedError(f"navarch serve refuses it: {now.reload.problem}")
                if now.reload.in_force == wanted:
                    return now.reload.late
            await asyncio.sleep(LOOK_SECONDS)  # its file has no events for us
    raise NavarchError("navarch serve ended meanwhile; the next one starts with the file")


def require_running(directory: Path) -> None:
    """Raise NavarchError unless a serve runs here: the process of its number may be another."""
    with (directory / LOCK_FILE).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise NavarchError(f"no navarch serve runs in {directory}: its next start reads the file")


def replace_file(target: Path, file: Path) -> bytes | None:
    """Put `file` in the place of `target`; what is returned was there. None: it is that file."""
    if file.absolute() == target:
        return None
    if file.absolute().parent != target.parent:
        raise NavarchError(
            f"the fleet runs with {target}: put {file} in that directory first, because relative "
            "paths in a configuration are meant from there"
        )
    if target.is_symlink():
        raise NavarchError(
            f"the fleet runs with {target}, which is a link: change what it leads to, then "
            f"navarch config apply {target}"
        )
    try:
        former = target.read_bytes()
        write_like(target, file.read_bytes())
    except OSError as error:
        raise NavarchError(f"{target} cannot be replaced: {error.strerror}") from error
    return former


def write_like(target: Path, data: bytes) -> None:
    """Replace a file in one stroke, with its owner and its mode."""
    draft = target.with_name(f".{target.name}.new")
    draft.unlink(missing_ok=True)
    there = target.stat()
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(data)
    draft.chmod(there.st_mode & 0o777)
    if (there.st_uid, there.st_gid) != (draft.stat().st_uid, draft.stat().st_gid):
        os.chown(draft, there.st_uid, there.st_gid)
    draft.replace(target)
