"""A SQLite file of messages that could not be sent: ordered, bounded, without duplicates.

Used only while the bus is away. A corrupt file is renamed and a new one created; a write failure is
an OSError or sqlite3.Error for the caller, who continues from memory. Calls block and belong in a
thread.
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
CREATE TABLE IF NOT EXISTS unsent (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    msg_id TEXT NOT NULL UNIQUE,
    subject TEXT NOT NULL,
    data BLOB NOT NULL,
    trace TEXT NOT NULL,
    sequence INTEGER NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """A message to publish; its ID makes that idempotent."""

    subject: str
    data: bytes
    msg_id: str
    trace: str = ""
    """traceparent; empty: none."""
    sequence: int = -1
    """Its sequence in the kernel log; -1: it has another source."""
    is_repeat: bool = False
    """Whether an equal fault was sent a moment ago: this one waits behind all others."""


class Spool:
    """The file, opened at first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store: sqlite3.Connection | None = None

    def restore(self) -> list[OutgoingEvent]:
        """Read unsent messages of an earlier run, oldest first."""
        if not self._path.exists():
            return []
        rows = (
            self._connection()
            .execute("SELECT subject, data, msg_id, trace, sequence FROM unsent ORDER BY place")
            .fetchall()
        )
        return [OutgoingEvent(*row) for row in rows]

    def add(self, messages: Iterable[OutgoingEvent]) -> None:
        """Append messages in one transaction; duplicates keep their position."""
        with self._connection() as store:
            store.executemany(
                "INSERT OR IGNORE INTO unsent (subject, data, msg_id, trace, sequence) "
                "VALUES (?, ?, ?, ?, ?)",
                [(m.subject, m.data, m.msg_id, m.trace, m.sequence) for m in messages],
            )

    def remove(self, msg_ids: Sequence[str]) -> None:
        """Delete messages that the bus has stored."""
        with self._connection() as store:
            store.executemany("DELETE FROM unsent WHERE msg_id = ?", [(each,) for each in msg_ids])

    def close(self) -> None:
        """Close the file."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _connection(self) -> sqlite3.Connection:
        if self._store is None:
            try:
                self._store = self._open()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                aside = self._path.with_suffix(".corrupt")
                log.error(  # noqa: TRY400 - the text is complete
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
            # Detects later damage now, not during an outage.
            _check(store)
        except BaseException:
            store.close()
            raise
        return store


def _check(store: sqlite3.Connection) -> None:
    found = store.execute("PRAGMA quick_check(1)").fetchone()
    if found[0] != "ok":
        raise sqlite3.DatabaseError(str(found[0]))
