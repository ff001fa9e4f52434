"""Reads what the fleet has recorded about this node; `navarch-agent healthy` reads a copy.

The copy is a small file, so that a prolog can ask in milliseconds, and also while the bus is away.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from agent.healthy_command import CONDITIONS_FILE, CONNECTED_SECONDS_MAX, FILE
from agent.json_file import write_json
from agent.settings import AgentConfig
from schemas.held_conditions import ConditionList, HeldCondition
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.topology import NODES
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError, UnreadableRecord

log = logging.getLogger(__name__)

READ_SECONDS: Final = 15.0
"""Interval; each of 10,000 agents reading its record makes 700 reads a second."""
CHANGING_SECONDS: Final = 3.0
"""Interval before its admission and during its sagas: what it has read then is repeated in
heartbeats, and must be known when the store is restored from a backup."""
FILE_SECONDS_MAX: Final = CONNECTED_SECONDS_MAX / 2
"""After so long an unchanged file is written again, at the next read: it says when its content was
read, and `navarch-agent connected` must not take it for old."""
REASON_CHARS_MAX: Final = 200

_decoder = decoder(NodeRecord)


class Admission(msgspec.Struct, frozen=True):
    """Holds what the agent has read about its node's admission, whatever the record lost since."""

    at: datetime | None = None
    sagas: int = 0
    """The highest number of ended sagas since."""

    def with_record(self, record: NodeRecord | None) -> "Admission":
        """Take in the record as it is now."""
        if record is None or record.admitted_at is None:
            return self
        before = self.sagas if record.admitted_at == self.at else 0
        return Admission(record.admitted_at, max(before, record.sagas))


class MissingEvents(msgspec.Struct, frozen=True):
    """Names what a node's record lacks of this boot."""

    registration: bool = False
    checks: bool = False
    refused: bool = False
    """Another machine is the node: this one uses its ID wrongly."""


class RecordCopy(msgspec.Struct, frozen=True, kw_only=True):
    """Declares the content of the file with a copy of the record."""

    node: str
    health: str
    reason: str
    read_at: float
    """Seconds since 1970: the reader needs nothing but `time` and `json`."""


class SeenConditions(msgspec.Struct, frozen=True, kw_only=True):
    """Declares the content of the file with what holds on this host."""

    seen_at: float
    """Seconds since 1970."""
    held: tuple[HeldCondition, ...]


class _ReadFile:
    """Writes a file for other programs where its content changed, or it is about to look old."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: object = None
        self._written_at = 0.0

    def write(self, content: object, dated: msgspec.Struct, now: float) -> None:
        """Write `dated`, which is `content` with the time `now`, in epoch seconds."""
        age = now - self._written_at
        if content == self._content and 0 <= age < FILE_SECONDS_MAX:
            return
        if write_json(self._path, dated):
            self._content, self._written_at = content, now


class OwnRecord:
    """Reads this node's record."""

    def __init__(
        self,
        config: AgentConfig,
        clock: Clock,
        bus: Callable[[], Bus | None],
        boot_id: str,
        conditions: Callable[[], ConditionList],
    ) -> None:
        """Read it from `bus`, as soon as there is one; `boot_id`: of this boot.

        `conditions`: what holds on this host.
        """
        self._conditions = conditions
        self._conditions_file = _ReadFile(Path(config.state_dir) / CONDITIONS_FILE)
        self._boot_id = boot_id
        self._last: NodeRecord | None = None
        self._key = node_key(config.pool, config.node)
        self._file = _ReadFile(Path(config.state_dir) / FILE)
        self._clock = clock
        self._bus = bus
        self.admission = Admission()

    async def cordoned(self) -> bool | None:
        """Return whether this node is cordoned; None: unknown."""
        record = await self._read()
        return None if record is None else record.cordoned

    @property
    def refused(self) -> bool:
        """Return whether the node is another machine, of which this one is no sign of life."""
        return self.missing.refused

    @property
    def missing(self) -> MissingEvents:
        """Return what the record lacked when it was last read."""
        return missing_events(self._last, self._boot_id)

    async def run(self) -> None:
        """Keep the copy up to date."""
        while True:
            self._last = record = await self._read()
            now = self._clock.now().timestamp()
            held = self._conditions().held
            self._conditions_file.write(held, SeenConditions(seen_at=now, held=held), now)
            if record is not None:
                copy = _copy(record, now)
                self._file.write((copy.health, copy.reason), copy, now)
                self.admission = self.admission.with_record(record)
            settled = record is not None and record.admitted_at is not None and not record.saga
            await self._clock.sleep(READ_SECONDS if settled else CHANGING_SECONDS)

    async def _read(self) -> NodeRecord | None:
        bus = self._bus()
        if bus is None:
            return None
        try:
            entry = await bus.get(NODES, self._key)
            return None if entry is None else _decoder.decode(entry.value)
        except (BusError, UnreadableRecord) as error:
            log.warning("this node's record cannot be read: %s", error)
            return None


def missing_events(record: NodeRecord | None, boot_id: str) -> MissingEvents:
    """Return what a node's record lacks: it was restored from a backup, or adopted."""
    if record is None or record.state == "terminated":
        return MissingEvents()
    return MissingEvents(
        registration=record.boot_id != boot_id,
        checks=record.boot_checked_id != boot_id,
        refused=record.identity is not None and record.identity.refuses(boot_id),
    )


def _copy(record: NodeRecord, now: float) -> RecordCopy:
    reason = record.health_reason[:REASON_CHARS_MAX]
    return RecordCopy(node=record.node, health=record.health, reason=reason, read_at=now)
