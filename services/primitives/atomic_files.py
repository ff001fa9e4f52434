"""Writes files that are whole at every moment: a reader finds the old one or the new one."""

import os
from pathlib import Path
from typing import Final

OWNER_ALONE: Final = 0o600
ANYONE_READS: Final = 0o666
"""As far as the umask lets them, as of any new file."""


def write_whole(file: Path, data: bytes) -> None:
    """Put a file in its place in one stroke."""
    draft = _draft(file)
    draft.unlink(missing_ok=True)
    # Exclusively: what another user has put there, as a link, is not followed.
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, ANYONE_READS)
    with os.fdopen(handle, "wb") as opened:
        opened.write(data)
    draft.replace(file)


def write_secret(file: Path, text: str, *, synced: bool = True) -> None:
    """Put a file in its place in one stroke, for its owner alone; `synced`: on the disk."""
    draft = _draft(file)
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ALONE)
    with os.fdopen(handle, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        if synced:
            os.fsync(opened.fileno())
    draft.replace(file)


def _draft(file: Path) -> Path:
    return file.with_name(f".{file.name}.new")
