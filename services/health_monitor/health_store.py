"""Reads and writes HEALTH: every change is decided on a record and saved by compare-and-set.

Effects are performed before the record is saved, so that a crash between the two repeats them
(their ids are the same) and loses none. A record kept in memory saves the read, and is trusted for
changes without effects only: a verdict always rests on what the bucket holds.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from schemas.health_records import HealthRecord
from schemas.messages import decoder, encode
from schemas.node_records import node_key
from schemas.topology import HEALTH
from services.bus.port import Bus
from services.health_monitor.rules.node_health import Decision, Effect
from services.primitives.errors import Conflict, Reject, Retry

ATTEMPTS_MAX: Final = 8
CACHED_NODES_MAX: Final = 20_000

_records: Final[msgspec.json.Decoder[Any]] = decoder(HealthRecord)


@dataclass(frozen=True, slots=True)
class Held:
    """A node's record as last seen."""

    record: HealthRecord
    revision: int
    """0: there is none, and `record` is a blank one."""


Decide = Callable[[HealthRecord], Decision]
Perform = Callable[[HealthRecord, Effect], Awaitable[None]]
MayBegin = Callable[[str, str], Awaitable[bool]]


async def never(_pool: str, _node: str) -> bool:
    """For what changes a record and never begins one."""
    return False


class HealthStore:
    """The HEALTH bucket, as its one writer uses it."""

    def __init__(self, bus: Bus) -> None:
        """Keep records in `bus`."""
        self._bus = bus
        self._cache: OrderedDict[str, Held] = OrderedDict()

    async def read(self, pool: str, node: str) -> Held:
        """Read what the bucket holds now."""
        key = node_key(pool, node)
        entry = await self._bus.get(HEALTH, key)
        if entry is None:
            self._cache.pop(key, None)
            return Held(HealthRecord(pool=pool, node=node), 0)
        try:
            record: HealthRecord = _records.decode(entry.value)
        except msgspec.DecodeError as error:
            raise Reject(f"HEALTH {key} cannot be read: {error}; delete the key") from error
        held = Held(record, entry.revision)
        self._keep(key, held)
        return held

    async def change(
        self,
        pool: str,
        node: str,
        decide: Decide,
        perform: Perform,
        *,
        may_begin: MayBegin = never,
    ) -> None:
        """Decide on a node's record, perform the effects, save; anew where another was first.

        `may_begin` is asked where there is no record; where it says no, nothing is done.
        """
        key = node_key(pool, node)
        held = self._cache.get(key)
        if held is not None:
            record, effects = decide(held.record)
            if not effects and await self._saved(key, held, record):
                return
        for _ in range(ATTEMPTS_MAX):
            held = await self.read(pool, node)
            if not held.revision and not await may_begin(pool, node):
                return
            record, effects = decide(held.record)
            for effect in effects:
                await perform(record, effect)
            if await self._saved(key, held, record):
                return
        raise Retry(f"HEALTH {key} was written by others {ATTEMPTS_MAX} times meanwhile")

    async def remove(self, pool: str, node: str) -> None:
        """Forget a node that is gone."""
        key = node_key(pool, node)
        self._cache.pop(key, None)
        await self._bus.delete(HEALTH, key)

    async def _saved(self, key: str, held: Held, record: HealthRecord) -> bool:
        if record == held.record:
            return True
        data = encode(record)
        try:
            if held.revision:
                revision = await self._bus.update(HEALTH, key, data, held.revision)
            else:
                revision = await self._bus.create(HEALTH, key, data)
        except Conflict:
            self._cache.pop(key, None)
            return False
        self._keep(key, Held(record, revision))
        return True

    def _keep(self, key: str, held: Held) -> None:
        self._cache[key] = held
        self._cache.move_to_end(key)
        if len(self._cache) > CACHED_NODES_MAX:
            self._cache.popitem(last=False)
