"""Defines what `navarch serve` and its processes agree on about the configuration.

Serve watches and checks the file, and sends SIGHUP. A process then ends with RELOAD_STATUS and is
started again, with what serve has checked and in an environment that it has computed again.
"""

import os
import socket
from pathlib import Path
from typing import Final

import msgspec

from services.primitives.errors import ConfigurationError
from services.runtime.configuration_watch import content_digest
from services.settings.configuration_text import read_text

SERVED_VARIABLE: Final = "NAVARCH_SERVED"
"""The file in serve's data directory with what it says of itself."""
RELOAD_STATUS: Final = 75
COPY_FILE: Final = "configuration.yaml"
"""The configuration in force, in serve's data directory; its secrets are in it."""
DIGITS: Final = 16
"""Of a configuration's digest on the bus."""


class ReloadState(msgspec.Struct, frozen=True, kw_only=True):
    """Says what serve has done about changes of the configuration's file."""

    finished: int = 0
    """Reloads since its start."""
    in_force: str = ""
    """Digest of the file's content."""
    refused: str = ""
    """Digest of what was refused last; empty: nothing since the last change in force."""
    problem: str = ""
    """Why."""
    late: str = ""
    """A process that was not ready in time with what is in force; those after it were left."""


class _Serve(msgspec.Struct):
    reload: ReloadState = ReloadState()


def process_facts(file: Path | None) -> dict[str, str]:
    """Return what a process says of itself on the bus.

    This is where it runs, and with which configuration.
    """
    text = read_text(file) if file is not None else ""
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "configuration": content_digest(text.encode())[:DIGITS],
    }


def is_served() -> bool:
    """Return whether this process is one of `navarch serve`."""
    return bool(os.environ.get(SERVED_VARIABLE))


def check_accepted() -> None:
    """Raise ConfigurationError with the reason for which serve refuses the file."""
    if not is_served():
        return
    try:
        said = msgspec.json.decode(Path(os.environ[SERVED_VARIABLE]).read_bytes(), type=_Serve)
    except (OSError, msgspec.DecodeError):
        return
    if said.reload.problem:
        raise ConfigurationError(said.reload.problem)
