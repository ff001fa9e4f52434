"""Keeps messages that could not be sent in a small SQLite file: in order, bounded, each once.

Used only while the bus is away. A store that is corrupt is put aside and a new one begun; one that
cannot be written is an OSError or sqlite3.Error for the caller, who goes on from memory. The calls
block, and are made in a thread.
"""

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096
FILE_BYTES_MAX: Final = 32 * 1_048_576
BUSY_SECONDS_MAX: Final = 1.0

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS waiting (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    msg_id TEXT NOT NULL UNIQUE,
    subject TEXT NOT NULL,
    data BLOB NOT NULL,
    trace TEXT NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be stored on the bus, once in effect."""

    subject: str
    data: bytes
    msg_id: str
    trace: str = ""
    """traceparent; empty: none."""
    sequence: int = -1
    """Its place in the kernel log, -1 where it does not come from there."""


class Spool:
    """The file; opened when it is first needed."""

    def __init__(self, path: Path) -> None:
        """Keep messages at `path`."""
        self._path = path
        self._store: sqlite3.Connection | None = None

    def restore(self) -> list[Outgoing]:
        """Read what an earlier run of the agent could not send, oldest first."""
        if not self._path.exists():
            return []
        rows = (
            self._opened()
            .execute("SELECT subject, data, msg_id, trace FROM waiting ORDER BY place")
            .fetchall()
        )
        return [Outgoing(*row) for row in rows]

    def add(self, messages: Iterable[Outgoing]) -> None:
        """Append messages in one transaction; one that is there already stays where it is."""
        with self._opened() as store:
            store.executemany(
                "INSERT OR IGNORE INTO waiting (msg_id, subject, data, trace) VALUES (?, ?, ?, ?)",
                [(each.msg_id, each.subject, each.data, each.trace) for each in messages],
            )

    def remove(self, msg_ids: Sequence[str]) -> None:
        """Forget messages that the bus has stored."""
        with self._opened() as store:
            store.executemany("DELETE FROM waiting WHERE msg_id = ?", [(each,) for each in msg_ids])

    def close(self) -> None:
        """Close the file."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _opened(self) -> sqlite3.Connection:
        if self._store is None:
            try:
                self._store = self._open()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                aside = self._path.with_suffix(".corrupt")
                log.error(  # noqa: TRY400 - the text is the whole story
                    "the spool %s is corrupt (%s); it is kept as %s", self._path, error, aside
                )
                self._path.replace(aside)
                self._store = self._open()
        return self._store

    def _open(self) -> sqlite3.Connection:
        store = sqlite3.connect(
            self._path,
            timeout=BUSY_SECONDS_MAX,
            check_same_thread=False,
            isolation_level="DEFERRED",
        )
        try:
            store.execute("PRAGMA journal_mode = TRUNCATE")
            store.execute(f"PRAGMA max_page_count = {FILE_BYTES_MAX // PAGE_BYTES}")
            store.execute(_TABLE)
            # A file that was damaged further in is found out now, not in the middle of an outage.
            _check(store)
        except BaseException:
            store.close()
            raise
        return store


def _check(store: sqlite3.Connection) -> None:
    found = store.execute("PRAGMA quick_check(1)").fetchone()
    if found[0] != "ok":
        raise sqlite3.DatabaseError(str(found[0]))
