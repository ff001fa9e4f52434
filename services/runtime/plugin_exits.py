"""Names the plugin in whose code a service's process ended, as by `os._exit`.

Each step of a plugin from outside is written into a file before it begins, and taken out when it
ends. What a process leaves there names the plugin that ran when it ended. The next process of the
service counts it.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from schemas.plugin_records import PluginExits
from services.primitives.atomic_files import write_whole
from services.primitives.plugin_thread import OnStep

FOLDER: Final = "plugin-calls"
SLOT_BYTES: Final = 512
SLOTS_MAX: Final = 256
"""Plugins of one process that are written down; further ones are not."""
EXITS_MAX: Final = 3
"""So many ends of a service within EXIT_SECONDS turn a plugin off."""
EXIT_SECONDS: Final = 900.0

log = logging.getLogger(__name__)


class PluginExitFile:
    """Keeps the steps of one process, and counts the ends of those before it."""

    def __init__(self, folder: Path, service: str, now: float) -> None:
        """Read what earlier processes of the service left, and begin a file of this one's own."""
        self._folder = folder / FOLDER
        self._service = service
        self._slots: dict[str, int] = {}
        self._handle = -1
        self.exits = PluginExits()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.exits = self._counted(now)
            own = self._folder / f"{service}.{os.getpid()}"
            self._handle = os.open(own, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            self._own = own
        except OSError as error:
            log.warning("calls of plugins are not written down: %s", error)

    def recorder(self, key: str, about: str) -> OnStep | None:
        """Return what writes down the steps of the plugin `key` in one use; None: no room."""
        slot = self._slots.setdefault(f"{key} {about}", len(self._slots))
        if self._handle < 0 or slot >= SLOTS_MAX:
            return None
        place, handle = slot * SLOT_BYTES, self._handle
        blank = b" " * SLOT_BYTES

        def on_step(label: str) -> None:
            text = msgspec.json.encode((key, label))[:SLOT_BYTES] if label else b""
            os.pwrite(handle, text + blank[len(text) :], place)

        return on_step

    def recent(self, key: str, now: float, since: float) -> int:
        """Return how many processes ended lately, and after `since`, while the plugin ran."""
        since = max(since, now - EXIT_SECONDS)
        return sum(1 for at in self.exits.ended.get(key, ()) if at > since)

    def forget(self, key: str) -> None:
        """Count from the beginning: an operator has enabled the plugin again."""
        ended = {each: at for each, at in self.exits.ended.items() if each != key}
        if ended != self.exits.ended:
            self.exits = PluginExits(ended=ended, last=self.exits.last)
            self._save(self.exits)

    def close(self) -> None:
        """Remove this process's file: it ends as it should."""
        if self._handle >= 0:
            self._own.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = -1

    @property
    def _counts(self) -> Path:
        return self._folder / f"{self._service}.exits"

    def _counted(self, now: float) -> PluginExits:
        before = self._read_counts()
        ended = {
            key: tuple(at for at in times if now - at < EXIT_SECONDS)
            for key, times in before.ended.items()
        }
        last = dict(before.last)
        for file in sorted(self._folder.glob(f"{self._service}.*")):
            pid = file.suffix.removeprefix(".")
            if not pid.isdigit() or (int(pid) != os.getpid() and _runs(int(pid))):
                continue
            for key, label in _left(file.read_bytes()).items():
                ended[key] = (*ended.get(key, ()), now)
                last[key] = label
            file.unlink(missing_ok=True)
        found = PluginExits(ended={key: each for key, each in ended.items() if each}, last=last)
        self._save(found)
        return found

    def _read_counts(self) -> PluginExits:
        try:
            return msgspec.json.decode(self._counts.read_bytes(), type=PluginExits)
        except (OSError, msgspec.DecodeError):
            return PluginExits()

    def _save(self, exits: PluginExits) -> None:
        write_whole(self._counts, msgspec.json.encode(exits))


def _left(data: bytes) -> Mapping[str, str]:
    """Return the steps that were running: the key of a plugin -> its label. Pure."""
    found = {}
    for place in range(0, len(data), SLOT_BYTES):
        text = data[place : place + SLOT_BYTES].strip()
        try:
            key, label = msgspec.json.decode(text, type=tuple[str, str])
        except msgspec.DecodeError:
            continue
        found[key] = label
    return found


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
