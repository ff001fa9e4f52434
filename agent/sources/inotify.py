"""inotify through libc, for the event loop: reports at once when a file grows or is replaced."""

import ctypes
import os
from pathlib import Path
from typing import Final

IN_MODIFY: Final = 0x2
IN_MOVED_TO: Final = 0x80
IN_CREATE: Final = 0x100
BUFFER_BYTES: Final = 65_536

_libc = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """Watches one directory; readable on `fd` when something in it changed."""

    def __init__(self, directory: Path) -> None:
        """Begin to watch; OSError where that cannot be."""
        self.fd = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self.fd < 0:
            raise _failure("inotify_init1")
        mask = IN_MODIFY | IN_CREATE | IN_MOVED_TO
        if _libc.inotify_add_watch(self.fd, os.fsencode(directory), mask) < 0:
            error = _failure(f"inotify_add_watch {directory}")
            os.close(self.fd)
            raise error

    def drain(self) -> None:
        """Discard pending notifications; the caller checks its file in any case."""
        while True:
            try:
                if not os.read(self.fd, BUFFER_BYTES):
                    return
            except BlockingIOError:
                return

    def close(self) -> None:
        """Stop watching."""
        os.close(self.fd)


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
