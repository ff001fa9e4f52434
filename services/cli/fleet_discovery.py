"""How the command line finds a bus: told, from the environment, or from a fleet served here.

`navarch serve` writes `<data_dir>/serve.json`; everything else reads it. A file whose process is
gone is ignored, with a sentence that says so.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from schemas.settings import NatsSettings, Settings
from services.primitives.errors import NavarchError
from services.settings.settings_file import DEFAULTS, load_settings, parse_settings

SERVE_FILE: Final = "serve.json"
LOCAL_FOLDER: Final = "local"
"""Below the data directory: the nodes that run as processes on this machine."""
NATS_URL_VARIABLE: Final = "NAVARCH_NATS_URL"


class ProcessId(msgspec.Struct, frozen=True, kw_only=True):
    """A process, told apart from a later one that was given the same number."""

    pid: int
    started_ticks: int
    """Since the machine booted, as /proc/<pid>/stat has it."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What a running `navarch serve` says of itself."""

    nats_url: str
    pid: int
    config: str = ""
    pids: dict[str, int] = {}
    """Process of each service, and of `nats-server` where it is ours."""
    http: dict[str, str] = {}
    """Readiness, liveness and metrics of each service."""
    processes: tuple[ProcessId, ...] = ()
    """The same processes, exactly: what a killed serve leaves behind is ended by the next."""
    stopper: tuple[ProcessId, ...] = ()
    """The process that stops the local nodes if this serve is killed."""


def settings_of(config: Path | None) -> Settings:
    """The configuration, or the defaults where none is named."""
    if config is None:
        return parse_settings("(defaults)", DEFAULTS, os.environ)
    return load_settings(config)


def find_bus(nats_url: str, config: Path | None) -> NatsSettings:
    """Where the bus is, or an error that says how to name one."""
    settings = settings_of(config)
    if url := nats_url or os.environ.get(NATS_URL_VARIABLE, ""):
        return msgspec.structs.replace(settings.nats, url=url)
    file = Path(settings.data_dir) / SERVE_FILE
    running = read_running(file)
    if running is not None:
        return msgspec.structs.replace(settings.nats, url=running.nats_url)
    raise NavarchError(
        f"no fleet is served from {file.parent.resolve()}: run `navarch serve` there, or name a "
        f"bus with --nats-url or {NATS_URL_VARIABLE}"
    )


def served_settings(config: Path | None) -> tuple[Settings, Path | None]:
    """The settings of the fleet that is served here, or those named; and their file."""
    settings = settings_of(config)
    if config is not None:
        return settings, config
    running = read_running(Path(settings.data_dir) / SERVE_FILE)
    if running is None or not running.config:
        return settings, None
    file = Path(running.config)
    return settings_of(file), file


def read_running(file: Path) -> Running | None:
    """What the serve of this data directory wrote; None where none runs."""
    try:
        running = msgspec.json.decode(file.read_bytes(), type=Running)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise NavarchError(f"{file} cannot be read ({error}): remove it") from error
    return running if started_ticks(running.pid) is not None else None


def started_ticks(pid: int) -> int | None:
    """When a process began; None where there is none (or only its remains)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _ticks_without_proc(pid)
    fields = stat.rsplit(")", 1)[1].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _ticks_without_proc(pid: int) -> int | None:
    """Where there is no /proc, that the process is there is all that can be said."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0
