"""Reads which instances exist from the provider itself, past everything under test."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from services.provisioner.providers.local import TERMINATED, instance_directories

BUSY_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class Truth:
    """Existing instances, and how many were ever launched."""

    existing: tuple[tuple[str, str], ...] = ()
    """(provider ID, instance name) of everything that costs money."""
    made: int = 0
    reboots: tuple[tuple[int, str], ...] = ()
    """Number and provider ID of each requested reboot."""

    @property
    def names(self) -> list[str]:
        """Instance names, repeated if there are several of a name."""
        return sorted(name for _, name in self.existing)


class Provider(Protocol):
    """Gives a provider's own state."""

    def truth(self) -> Truth:
        """Return the current state."""
        ...

    def names(self) -> list[str]:
        """Current instance names; cheap."""
        ...


class FakeProviderTruth:
    """Reads the database file of the `fake` provider."""

    def __init__(self, file: Path) -> None:
        """Read `file`, again only when it has changed."""
        self._file = file
        self._database: sqlite3.Connection | None = None
        self._version = -1
        self._truth = Truth()

    def truth(self) -> Truth:
        """Return the current state."""
        if self._database is None:
            if not self._file.exists():
                return Truth()
            self._database = sqlite3.connect(self._file, timeout=BUSY_SECONDS_MAX)
        (version,) = self._database.execute("PRAGMA data_version").fetchone()
        if version != self._version and (truth := _read(self._database)) is not None:
            self._truth, self._version = truth, version
        return self._truth

    def names(self) -> list[str]:
        """Current instance names."""
        return self.truth().names


def _read(database: sqlite3.Connection) -> Truth | None:
    """One consistent read; None while the tables do not exist."""
    try:
        with database:
            database.execute("BEGIN")
            existing = tuple(database.execute("SELECT provider_id, name FROM made"))
            last = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'made'")
            (made,) = last.fetchone() or (0,)
            calls = database.execute("SELECT number, about FROM calls WHERE call = 'reboot'")
            reboots = tuple(calls)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return None
        raise
    return Truth(existing, made, reboots)


class LocalProviderTruth:
    """Reads the directories of the `local` provider, and the agent processes of this machine."""

    def __init__(self, directory: Path) -> None:
        """Read `directory`."""
        self._directory = directory

    def truth(self) -> Truth:
        """Return the current state: every agent process, and every directory without one."""
        places = instance_directories(self._directory)
        agents = self.agents()
        empty = [(each.name, each.name) for each in places if each.name not in agents.values()]
        aside = list(self._directory.glob(f"{TERMINATED}*"))
        existing = (*((str(pid), name) for pid, name in agents.items()), *empty)
        return Truth(existing, len(places) + len(aside))

    def names(self) -> list[str]:
        """Return the names of the current directories."""
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
