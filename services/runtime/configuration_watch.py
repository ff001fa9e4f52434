"""Watches the files of a configuration, and reports when their content is another.

A file that is written is read when its writer closes it, so one that is half written changes
nothing. A file that is renamed into place counts, and so does a link on the way to it that points
elsewhere, as in a ConfigMap of Kubernetes.
"""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from services.primitives.inotify import (
    IN_CLOSE_WRITE,
    IN_CREATE,
    IN_MOVED_TO,
    FileEvent,
    Inotify,
)
from services.primitives.race import race

log = logging.getLogger(__name__)

MASK: Final = IN_CLOSE_WRITE | IN_CREATE | IN_MOVED_TO
QUIET_SECONDS: Final = 0.5
"""Without a further change before the files are read."""
QUIET_SECONDS_MAX: Final = 10.0
LOOK_SECONDS: Final = 10.0
"""Between two looks where the kernel gives no notifications."""
LINKS_MAX: Final = 40
"""Followed on the way to a file, as by the kernel."""

Entry = tuple[Path, str]
"""A directory, and a name in it."""


class ConfigurationWatch:
    """Watches the files of one configuration."""

    def __init__(self, files: Sequence[Path], changed: Callable[[], None]) -> None:
        """Call `changed` when a file's content is another than when this was made."""
        self._files = files
        self._changed = changed
        self._known = digest_of(files)
        self._seen = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            entries = frozenset(entry for file in self._files for entry in entries_of(file))
            directories = {directory for directory, _ in entries}
            try:
                # A file that is mounted by itself changes without its directory.
                inotify = Inotify(*directories, *filter(Path.exists, self._files), mask=MASK)
            except OSError as error:
                log.warning("looking at the configuration every %g s: %s", LOOK_SECONDS, error)
                await asyncio.sleep(LOOK_SECONDS)
                self._look()
                continue
            loop.add_reader(inotify.fd, self._take, inotify, entries)
            try:
                await self._quiet()
                self._look()
                await self._seen.wait()
            finally:
                loop.remove_reader(inotify.fd)
                inotify.close()

    def _take(self, inotify: Inotify, entries: Collection[Entry]) -> None:
        if any(matters(event, entries) for event in inotify.events()):
            self._seen.set()

    async def _quiet(self) -> None:
        """Wait until nothing has changed for a while."""
        loop = asyncio.get_running_loop()
        end = loop.time() + QUIET_SECONDS_MAX
        while self._seen.is_set() and loop.time() < end:
            self._seen.clear()
            await race(self._seen.wait(), seconds_max=QUIET_SECONDS)

    def _look(self) -> None:
        now = digest_of(self._files)
        if now and now != self._known:
            self._known = now
            self._changed()


def digest_of(files: Sequence[Path]) -> str:
    """Return a digest of all files; empty: one cannot be read, as while it is replaced."""
    try:
        return content_digest(*(file.read_bytes() for file in files))
    except OSError:
        return ""


def content_digest(*contents: bytes) -> str:
    """Return a digest of the contents of some files."""
    whole = hashlib.sha256()
    for each in contents:
        whole.update(hashlib.sha256(each).digest())
    return whole.hexdigest()


def matters(event: FileEvent, entries: Collection[Entry]) -> bool:
    """Return whether an event may have changed one of the files."""
    if not event.name:
        return True
    if (event.watched, event.name) not in entries:
        return False
    # A file that was just made is empty: the end of its writing follows.
    return event.mask != IN_CREATE or (event.watched / event.name).is_symlink()


def entries_of(file: Path) -> Iterator[Entry]:
    """Yield the entry of the file, and those of the links on the way to it."""
    parts, at = deque(file.absolute().parts[1:]), Path("/")
    links = 0
    while parts:
        name = parts.popleft()
        if name == "..":
            at = at.parent
            continue
        entry = at / name
        if entry.is_symlink() and links < LINKS_MAX:
            links += 1
            yield at, name
            target = entry.readlink()
            at = Path("/") if target.is_absolute() else at
            parts.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
        else:
            if not parts:
                yield at, name
            at = entry
