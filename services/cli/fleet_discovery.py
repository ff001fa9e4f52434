"""Finds the bus for a command: by option, environment, a fleet served here, or settings.

`navarch serve` writes `<data_dir>/serve.json`; the other commands read it. A file whose process no
longer runs is ignored.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from schemas.settings import NatsSettings, Settings
from services.primitives.errors import NavarchError
from services.runtime.served_process import ReloadState
from services.settings.problem_list import ProblemList

SERVE_FILE: Final = "serve.json"
LOCK_FILE: Final = "serve.lock"
"""Locked while serve runs."""
LOCAL_FOLDER: Final = "local"
"""Below the data directory: the nodes that run as processes on this machine."""
NATS_URL_VARIABLE: Final = "NAVARCH_NATS_URL"
SERVER_VARIABLE: Final = "NAVARCH_SERVER"
NEEDS_BUS: Final = (
    "needs the bus, and NAVARCH_SERVER or --server names a gateway: leave it out, or name the bus "
    "with --nats-url"
)
CREDS_VARIABLE: Final = "NAVARCH_NATS_CREDS_FILE"


class ProcessId(msgspec.Struct, frozen=True, kw_only=True):
    """A process, distinguished from a later one with the same PID."""

    pid: int
    started_ticks: int
    """Since the machine booted, as /proc/<pid>/stat has it."""


class ServeState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a running `navarch serve` publishes in SERVE_FILE."""

    nats_url: str
    pid: int
    creds_file: str = ""
    """Credentials of the operator; empty: the bus is open, or the configuration names them."""
    tls_ca_file: str = ""
    """Authority of the bus; empty: it is not encrypted, or the configuration names it."""
    config: str = ""
    directory: str = ""
    """Of its data."""
    pids: dict[str, int] = {}
    """Process of each service, and of `nats-server` where it is ours."""
    http: dict[str, str] = {}
    """Readiness, liveness and metrics of each service."""
    processes: tuple[ProcessId, ...] = ()
    """The same processes, exactly: after a kill, the next serve ends those that still run."""
    stopper: tuple[ProcessId, ...] = ()
    """The process that stops the local nodes if this serve is killed."""
    reload: ReloadState = ReloadState()


def settings_of(config: Path | None) -> Settings:
    """Return the configuration, or the defaults without a file."""
    # Commands over HTTP start without what checks configurations.
    from services.settings.settings_file import (  # noqa: PLC0415
        DEFAULTS,
        load_settings,
        parse_settings,
    )

    if config is None:
        return parse_settings("(defaults)", DEFAULTS, os.environ)
    return load_settings(config)


def find_bus(nats_url: str, config: Path | None) -> NatsSettings:
    """Find the bus; the error says how to name one.

    A configuration that is wrong elsewhere does not hide the fleet that is served with the one
    before.
    """
    settings, problems = _as_far_as_read(config)
    url = nats_url or os.environ.get(NATS_URL_VARIABLE, "")
    if not url and os.environ.get(SERVER_VARIABLE):
        raise NavarchError(f"this command {NEEDS_BUS}")
    file = Path(settings.data_dir) / SERVE_FILE
    try:
        running = read_serve_state(file)
    except NavarchError:
        if not url:
            raise
        running = None
    if running is not None and url in ("", running.nats_url):
        # Credentials that the caller names take precedence.
        creds = os.environ.get(CREDS_VARIABLE) or running.creds_file or settings.nats.creds_file
        authority = running.tls_ca_file or settings.nats.tls_ca_file
        return msgspec.structs.replace(
            settings.nats, url=running.nats_url, creds_file=creds, tls_ca_file=authority
        )
    problems.raise_found()
    if url or settings.nats.url != NatsSettings().url:
        return msgspec.structs.replace(settings.nats, url=url or settings.nats.url)
    raise NavarchError(
        f"no fleet is served from {file.parent.resolve()}: run `navarch serve` there, or name a "
        f"bus with --nats-url or {NATS_URL_VARIABLE}"
    )


def _as_far_as_read(config: Path | None) -> tuple[Settings, ProblemList]:
    problems = ProblemList()
    if config is None:
        return settings_of(None), problems
    from services.settings.settings_file import inspect_configuration, read_file  # noqa: PLC0415

    configuration = inspect_configuration(read_file(config), os.environ)
    problems.extend(configuration.problems)
    return configuration.settings, problems


def served_settings(config: Path | None) -> tuple[Settings, Path | None]:
    """The settings of the fleet that is served here, or those named; and their file."""
    settings = settings_of(config)
    if config is not None:
        return settings, config
    running = read_serve_state(Path(settings.data_dir) / SERVE_FILE)
    if running is None or not running.config:
        return settings, None
    file = Path(running.config)
    return settings_of(file), file


def read_serve_state(file: Path) -> ServeState | None:
    """Read the state of the running serve; None if none runs."""
    try:
        running = msgspec.json.decode(file.read_bytes(), type=ServeState)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise NavarchError(
            f"{file.parent.resolve()} is another user's: run this command as its owner, or name "
            f"the bus with --nats-url and credentials of yours with {CREDS_VARIABLE}"
        ) from error
    except (OSError, msgspec.DecodeError) as error:
        raise NavarchError(f"{file} cannot be read ({error}): remove it") from error
    return running if started_ticks(running.pid) is not None else None


def started_ticks(pid: int) -> int | None:
    """When a process started; None if it does not run, or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _ticks_without_proc(pid)
    fields = stat.rsplit(")", 1)[1].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _ticks_without_proc(pid: int) -> int | None:
    """Without /proc, only whether the process exists is known."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0
