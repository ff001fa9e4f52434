"""What the provider itself says stands, read past everything that is being tested."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.provisioner.providers.local import TERMINATED, instance_directories


@dataclass(frozen=True, slots=True)
class Truth:
    """What stands now, and how many were ever made."""

    standing: tuple[tuple[str, str], ...] = ()
    """(provider id, instance name) of everything that costs money."""
    made: int = 0

    @property
    def names(self) -> list[str]:
        """The names of what stands, as often as they stand."""
        return sorted(name for _, name in self.standing)


class Provider(Protocol):
    """A provider, seen from its own side."""

    def truth(self) -> Truth:
        """What stands at this moment."""
        ...

    def names(self) -> list[str]:
        """The names of what stands at this moment; cheap."""
        ...


class FakeTruth:
    """The file of the `fake` provider; it is always whole."""

    def __init__(self, file: Path) -> None:
        """Read `file`, again only when it has changed."""
        self._file = file
        self._read: tuple[int, int] = (0, 0)
        self._truth = Truth()

    def truth(self) -> Truth:
        """What stands at this moment."""
        try:
            stat = os.stat(self._file)  # noqa: PTH116 - many times a second
        except FileNotFoundError:
            return Truth()
        if (stat.st_ino, stat.st_mtime_ns) != self._read:
            state = json.loads(self._file.read_bytes())
            standing = tuple((key, each["instance"]["name"]) for key, each in state["made"].items())
            self._truth = Truth(standing, state["serial"])
            self._read = (stat.st_ino, stat.st_mtime_ns)
        return self._truth

    def names(self) -> list[str]:
        """The names of what stands at this moment."""
        return self.truth().names


class LocalTruth:
    """The directories of the `local` provider, and the agent processes of this machine."""

    def __init__(self, directory: Path) -> None:
        """Look into `directory`."""
        self._directory = directory

    def truth(self) -> Truth:
        """What stands at this moment: every agent process, every directory without one."""
        places = instance_directories(self._directory)
        agents = self.agents()
        empty = [(each.name, each.name) for each in places if each.name not in agents.values()]
        aside = list(self._directory.glob(f"{TERMINATED}*"))
        standing = (*((str(pid), name) for pid, name in agents.items()), *empty)
        return Truth(standing, len(places) + len(aside))

    def names(self) -> list[str]:
        """The names of the directories that there are at this moment."""
        return [each.name for each in instance_directories(self._directory)]

    def agents(self) -> dict[int, str]:
        """Every agent that was started for an instance here: process -> instance."""
        wanted = f"NAVARCH_EXIT_WITHOUT={self._directory}/"
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environ = (process / "environ").read_bytes().decode("utf-8", "replace")
            except OSError:
                continue
            for each in environ.split("\0"):
                if each.startswith(wanted):
                    found[int(process.name)] = each.removeprefix(wanted)
        return found
