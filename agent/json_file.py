"""Small JSON files that hold the agent's state over restarts, written atomically."""

import logging
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from services.primitives.atomic_files import write_whole

log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 1_048_576

T = TypeVar("T")


def read_json(path: Path, kind: type[T], empty: T) -> T:
    """Read a file; `empty` where it is missing, corrupt or too large."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError(f"larger than {FILE_BYTES_MAX} bytes")  # noqa: TRY301
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return empty
    except (OSError, ValueError, RecursionError) as error:
        log.warning("cannot read %s, so the agent starts without it: %s", path, error)
        return empty


def write_json(path: Path, value: Any) -> bool:
    """Write a file; False, and a warning, where the disk refuses."""
    try:
        write_whole(path, msgspec.json.encode(value))
    except OSError as error:
        log.warning("cannot write %s, so a restart forgets it: %s", path, error)
        return False
    return True
