"""inotify through libc, for the event loop: reports at once when a file grows or is replaced."""

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

IN_MODIFY: Final = 0x2
IN_CLOSE_WRITE: Final = 0x8
IN_MOVED_TO: Final = 0x80
IN_CREATE: Final = 0x100
BUFFER_BYTES: Final = 65_536
HEAD: Final = struct.Struct("iIII")
"""Of an event: watch, what happened, cookie, length of the name that follows."""

_libc = ctypes.CDLL(None, use_errno=True)


class FileEvent(NamedTuple):
    """Describes what happened to a watched file, or to one entry of a watched directory."""

    watched: Path
    name: str
    """Of the entry; empty: it is about what is watched itself, or notifications were lost."""
    mask: int


class Inotify:
    """Watches directories and files; readable on `fd` when something in one changed."""

    def __init__(self, *paths: Path, mask: int = IN_MODIFY | IN_CREATE | IN_MOVED_TO) -> None:
        """Begin to watch; OSError where that cannot be."""
        self._watched: dict[int, Path] = {}
        self.fd = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self.fd < 0:
            raise _failure("inotify_init1")
        for path in paths:
            watch = int(_libc.inotify_add_watch(self.fd, os.fsencode(path), mask))
            if watch < 0:
                error = _failure(f"inotify_add_watch {path}")
                os.close(self.fd)
                raise error
            self._watched[watch] = path

    def events(self) -> Iterator[FileEvent]:
        """Take the pending notifications."""
        while data := self._read():
            while data:
                watch, mask, _, length = HEAD.unpack_from(data)
                name = data[HEAD.size : HEAD.size + length].rstrip(b"\0")
                data = data[HEAD.size + length :]
                yield FileEvent(self._watched.get(watch, Path()), os.fsdecode(name), mask)

    def drain(self) -> None:
        """Discard pending notifications; the caller checks its file in any case."""
        while self._read():
            pass

    def _read(self) -> bytes:
        try:
            return os.read(self.fd, BUFFER_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Stop watching all files."""
        os.close(self.fd)


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
