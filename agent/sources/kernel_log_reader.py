"""Follows the kernel log: /dev/kmsg, or a file in its record format, as it is written.

Every record is passed on in the callback that read it. The position is stored as boot ID and
sequence: a restart neither repeats nor skips lines, a new boot starts from the beginning. No line's
content stops the reader.
"""

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from agent.json_file import read_json, write_json
from agent.observations import KernelLogLine
from agent.sources.kernel_log_parser import parse_kmsg, split_records
from services.primitives.inotify import Inotify

log = logging.getLogger(__name__)

RECORD_BYTES_MAX: Final = 16_384
CHUNK_BYTES: Final = 262_144
UNFINISHED_BYTES_MAX: Final = 65_536
RECORDS_PER_CALL_MAX: Final = 2_000
"""After so many the event loop runs; the rest is read right after."""
PROMPT_WAKES_MAX: Final = 20
BUSY_PAUSE_SECONDS: Final = 0.05
"""Lines are read at once, each in its own wake-up; beyond PROMPT_WAKES_MAX a second they are read
in batches, which costs a tenth and delays them by this much."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Records how far the log was processed."""

    boot_id: str
    sequence: int
    log: str = ""
    """Which log; empty: written by a release that did not say."""


class PositionFile:
    """Stores a Position over restarts, atomically."""

    def __init__(self, path: Path, boot_id: str, log: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._log = log
        self._saved = -1

    def load(self) -> int:
        """Read the last sequence dealt with, of this log in this boot; -1: none."""
        found = read_json(self._path, Position, Position(boot_id="", sequence=-1))
        if found.boot_id != self._boot_id or found.log not in ("", self._log):
            return -1
        self._saved = found.sequence
        return found.sequence

    def save(self, sequence: int) -> None:
        """Store how far the log was processed; a full disk is only logged."""
        if sequence <= self._saved:
            return
        position = Position(boot_id=self._boot_id, sequence=sequence, log=self._log)
        if write_json(self._path, position):
            self._saved = sequence


class KernelLogReader:
    """Follows the log in a running event loop, from `start` on."""

    def __init__(
        self,
        path: Path,
        *,
        after: int,
        on_line: Callable[[KernelLogLine], None],
        on_gap: Callable[[int, int], None],
        on_earlier: Callable[[KernelLogLine], None] = lambda _: None,
    ) -> None:
        """Pass on every record after sequence `after`, and (count, next sequence) of each gap.

        `on_earlier` gets the records up to `after` that are still there.
        """
        self._path = path
        self._on_line = on_line
        self._on_gap = on_gap
        self._on_earlier = on_earlier
        self._file = -1
        self._inode = -1
        self._inotify: Inotify | None = None
        self._unfinished = b""
        self._gone_on = False
        self._device = False
        self.sequence = after
        """Sequence of the last record passed on."""
        self._wakes = 0
        self._wakes_since = 0.0
        self._pausing: asyncio.TimerHandle | None = None
        self.malformed = 0
        """Lines that are not valid records."""

    @property
    def started(self) -> bool:
        """Return whether the reader follows the log."""
        return self._inotify is not None or self._file >= 0

    def start(self) -> None:
        """Read what is there, then what comes; OSError where the log cannot be opened."""
        loop = asyncio.get_running_loop()
        try:
            self._device = stat.S_ISCHR(self._path.stat().st_mode)
        except FileNotFoundError:
            self._device = False
        if self._device:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            loop.add_reader(self._file, self._wake)
            self._read_device()
            return
        self._inotify = Inotify(self._path.parent)
        loop.add_reader(self._inotify.fd, self._wake)
        self._read_changes()

    def stop(self) -> None:
        """Read no more."""
        loop = asyncio.get_running_loop()
        if self._pausing is not None:
            self._pausing.cancel()
        if self._inotify is not None:
            loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None
        if self._file >= 0:
            if self._device:
                loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _wake(self) -> None:
        """Read; in a burst only at intervals."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._wakes_since >= 1.0:
            self._wakes, self._wakes_since = 0, loop.time()
        self._wakes += 1
        self._read()
        if self._wakes > PROMPT_WAKES_MAX and (fd := self._wake_fd()) >= 0:
            loop.remove_reader(fd)
            self._pausing = loop.call_later(BUSY_PAUSE_SECONDS, self._go_on_after_pause)

    def _go_on_after_pause(self) -> None:
        self._read()
        if (fd := self._wake_fd()) >= 0:
            asyncio.get_running_loop().add_reader(fd, self._wake)

    def _wake_fd(self) -> int:
        """File descriptor that wakes the loop; -1: stopped."""
        return self._file if self._inotify is None else self._inotify.fd

    def _read(self) -> None:
        if self._device:
            self._read_device()
        else:
            self._read_changes()

    # --- the device -----------------------------------------------------------------------------

    def _read_device(self) -> None:
        for _ in range(RECORDS_PER_CALL_MAX):
            if self._file < 0:
                return
            try:
                record = os.read(self._file, RECORD_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError as error:
                # EPIPE: records were overwritten before they were read; the next one shows how
                # many. EINVAL: one is longer than the buffer, which the kernel does not make.
                if error.errno in (errno.EPIPE, errno.EINVAL, errno.EINTR):
                    continue
                log.exception("the kernel log cannot be read any more")
                self.stop()
                return
            if not record:
                return
            self._take(record)

    # --- a file ---------------------------------------------------------------------------------

    def _read_changes(self) -> None:
        if self._inotify is None:
            return
        self._inotify.drain()
        if self._file >= 0 and self._is_replaced():
            self._read_file()
            os.close(self._file)
            self._file = -1
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            except OSError as error:
                log.warning("cannot open the kernel log: %s", error)
                return
            self._inode = os.fstat(self._file).st_ino
            self._unfinished = b""
        self._read_file()

    def _is_replaced(self) -> bool:
        """Whether another file has its name now, or it was cut."""
        here = os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            now = self._path.stat()
        except OSError:
            return False
        return now.st_ino != self._inode or now.st_size < here

    def _read_file(self) -> None:
        data = os.read(self._file, CHUNK_BYTES)
        records, self._unfinished = split_records(self._unfinished + data)
        if len(self._unfinished) > UNFINISHED_BYTES_MAX:
            self.malformed += 1
            self._unfinished = b""
        for record in records:
            self._take(record)
        if len(data) == CHUNK_BYTES and not self._gone_on:
            self._gone_on = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._gone_on = False
        self._read_changes()

    # --- records --------------------------------------------------------------------------------

    def _take(self, record: bytes) -> None:
        line = parse_kmsg(record)
        if line is None:
            self.malformed += 1
            return
        if line.sequence <= self.sequence:
            self._on_earlier(line)
            return
        lost = line.sequence - self.sequence - 1
        if lost and self.sequence >= 0:
            self._on_gap(lost, line.sequence)
        self.sequence = line.sequence
        self._on_line(line)
