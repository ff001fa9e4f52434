"""What the fleet has recorded about this node, and a copy of it for `navarch-agent healthy`.

The copy is a small file, so that a prolog can ask in milliseconds, and also while the bus is away.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from agent.healthy_command import FILE
from agent.json_file import write_json
from agent.settings import AgentConfig
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.topology import NODES
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError, UnreadableRecord

log = logging.getLogger(__name__)

READ_SECONDS: Final = 15.0
"""Interval; each of 10,000 agents reading its record makes 700 reads a second."""
REASON_CHARS_MAX: Final = 200

_decoder = decoder(NodeRecord)


class RecordCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    node: str
    health: str
    reason: str
    read_at: float
    """Seconds since 1970: the reader needs nothing but `time` and `json`."""


class OwnRecord:
    """This node's record."""

    def __init__(self, config: AgentConfig, clock: Clock, bus: Callable[[], Bus | None]) -> None:
        """Read it from `bus`, as soon as there is one."""
        self._key = node_key(config.pool, config.node)
        self._file = Path(config.state_dir) / FILE
        self._clock = clock
        self._bus = bus

    async def cordoned(self) -> bool | None:
        """Whether this node is cordoned; None: unknown."""
        record = await self._read()
        return None if record is None else record.cordoned

    async def run(self) -> None:
        """Keep the copy up to date."""
        while True:
            if (record := await self._read()) is not None:
                write_json(self._file, _copy(record, self._clock.now().timestamp()))
            await self._clock.sleep(READ_SECONDS)

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


def _copy(record: NodeRecord, now: float) -> RecordCopy:
    reason = record.health_reason[:REASON_CHARS_MAX]
    return RecordCopy(node=record.node, health=record.health, reason=reason, read_at=now)
