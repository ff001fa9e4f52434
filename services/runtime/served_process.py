"""What `navarch serve` and its processes agree on about the configuration.

Serve watches and checks the file, and sends SIGHUP. A process then ends with RELOAD_STATUS and is
started again, with what serve has checked and in an environment that it has computed again.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from services.primitives.errors import ConfigurationError

SERVED_VARIABLE: Final = "NAVARCH_SERVED"
"""The file in serve's data directory with what it says of itself."""
RELOAD_STATUS: Final = 75


class ReloadState(msgspec.Struct, frozen=True, kw_only=True):
    """What serve has done about changes of the configuration's file."""

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


def is_served() -> bool:
    """Whether this process is one of `navarch serve`."""
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
