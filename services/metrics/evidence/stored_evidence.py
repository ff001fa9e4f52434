"""Reads a node's history and stored evidence from the bus.

It reads records and streams and needs no running service, so the command line uses it too.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from schemas import evidence_bundles as e
from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import LimitedDecoder, Record, decoder
from schemas.node_events import Telemetry
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import BreakerOpened, Incident
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, EVIDENCE, HEALTH, INSTANCES, NODES, SAGAS, TELEMETRY
from services.bus.port import BucketSpec, Bus, Stored
from services.metrics.evidence.outages import NodeHistory
from services.primitives.errors import Refused, UnreadableRecord

POOL_EVENTS_MAX: Final = 20_000
"""Per pool, the newest."""
SAGAS_MAX: Final = 50
"""Per node, the newest."""

R = TypeVar("R", bound=Record)
log = logging.getLogger(__name__)

_telemetry = LimitedDecoder(Telemetry)
_capture = decoder(e.EvidenceCapture)
_bundle = decoder(e.EvidenceBundle)


class PoolLog:
    """The events of pools, each read once, since a wave needs them for every node."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._last_read: dict[str, int] = {}
        self._events: dict[str, deque[tuple[Stored, frozenset[str]]]] = {}
        self._lock = asyncio.Lock()

    async def events_about(self, pool: str, node: str) -> list[Stored]:
        """Every event of the pool that names the node."""
        async with self._lock:
            events = self._events.setdefault(pool, deque(maxlen=POOL_EVENTS_MAX))
            after = self._last_read.get(pool, 0)
            for each in await self._bus.read(
                EVENTS.name, subjects.pool_events_of(pool), after=after
            ):
                events.append((each, _named_nodes(decode_stored(each))))
                self._last_read[pool] = each.sequence
            return [each for each, names in events if node in names]


def _named_nodes(message: object) -> frozenset[str]:
    """The nodes that an event of a pool names."""
    names = [getattr(message, name, "") for name in ("node", "old_node", "new_node")]
    match message:
        case BreakerOpened(waiting=waiting):
            names += waiting
        case Incident(named=named):
            names += named
        case _:
            pass
    return frozenset(names)


async def read_history(
    bus: Bus, pools: PoolLog, pool: str, node: str, sagas: Iterable[str]
) -> NodeHistory:
    """Read what is stored about a node; `sagas`: IDs to include besides those that it finds."""
    key = node_key(pool, node)
    record, health, instance, samples, own, pools_ = await asyncio.gather(
        _record(bus, NODES, key, NodeRecord),
        _record(bus, HEALTH, key, HealthRecord),
        _record(bus, INSTANCES, key, InstanceRecord),
        bus.read(TELEMETRY.name, subjects.telemetry(pool, node)),
        bus.read(EVENTS.name, subjects.node_events_of(pool, node)),
        pools.events_about(pool, node),
    )
    names = [*sagas, record.saga if record else ""]
    names += [getattr(decode_stored(each), "saga", "") for each in (*own, *pools_)]
    distinct = list(dict.fromkeys(name for name in names if name))
    trees = await asyncio.gather(
        *(bus.read(SAGAS.name, subjects.saga_tree(each)) for each in distinct[-SAGAS_MAX:])
    )
    return NodeHistory(
        pool=pool,
        node=node,
        record=record,
        health=health,
        instance=instance,
        samples=tuple(sample for each in samples if (sample := _sample(each)) is not None),
        stored=(*own, *pools_, *(entry for tree in trees for entry in tree)),
    )


async def _record(bus: Bus, bucket: BucketSpec, key: str, kind: type[R]) -> R | None:
    entry = await bus.get(bucket, key)
    if entry is None:
        return None
    try:
        found = decoder(kind).decode(entry.value)
    except msgspec.DecodeError as error:
        log.warning("unreadable record", extra={"key": key, "error": str(error)})
        return None
    assert isinstance(found, kind)
    return found


def _sample(stored: Stored) -> Telemetry | None:
    try:
        return _telemetry.decode(stored.data)
    except msgspec.DecodeError:
        # The consumer of telemetry counts unreadable samples.
        return None


async def stored_capture(bus: Bus, pool: str, node: str) -> tuple[e.EvidenceCapture | None, int]:
    """A node's capture and its revision; 0 if there is none."""
    name = e.capture_name(pool, node)
    try:
        found = await bus.get_object(EVIDENCE, name)
    except Refused as error:
        # Some of its chunks were dropped; the next capture overwrites it.
        log.warning("incomplete evidence: %s", error)
        infos = await bus.objects(EVIDENCE)
        return None, next((each.revision for each in infos if each.name == name), 0)
    if found is None:
        return None, 0
    try:
        return _capture.decode(found.data), found.info.revision
    except msgspec.DecodeError as error:
        log.warning("unreadable evidence", extra={"object": name, "error": str(error)})
        return None, found.info.revision


async def stored_bundle(bus: Bus, name: str) -> e.EvidenceBundle | None:
    """A bundle by its name; UnreadableRecord where its content is not one."""
    found = await bus.get_object(EVIDENCE, name)
    try:
        return _bundle.decode(found.data) if found else None
    except msgspec.DecodeError as error:
        raise UnreadableRecord(EVIDENCE.name, name, str(error)) from error
