"""Records again what NODES and POOLS lost while INSTANCES, SAGAS and EVENTS still have it."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_events import FACTS, NodeEvent, ProviderNotice, Terminated
from schemas.node_records import node_key
from schemas.pool_events import FACTS as POOL_FACTS
from schemas.pool_events import NodeReplaced, OperatorNeeded, PoolEvent
from schemas.pool_records import PoolRecord
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, INSTANCES, SAGAS
from services.bus.bucket_mirror import readable
from services.bus.port import Bus, Stored
from services.bus.protocol.endpoint_replies import reply_data
from services.pool_manager.planner.disruption_budget import lifted, recounted
from services.pool_manager.planner.node_counts import Nodes, busy, size
from services.pool_manager.planner.node_reconstruction import (
    AGENT_FACTS,
    REPLAYED_FACTS,
    NodeSources,
    StoredEvent,
    reconstructed_node,
)
from services.pool_manager.planner.safety.published_conditions import (
    CONDITION_EVENTS,
    with_published,
)
from services.pool_manager.planner.saga_audit import counted_in_rates, has_ended, reopened
from services.pool_manager.planner.sizing.open_sagas import highest_serial
from services.pool_manager.planner.sizing.successors import awaited_again, forgotten
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.primitives.errors import NavarchError
from services.saga.saga_log import fold_stored, saga_of
from services.saga.saga_state import SagaState
from services.settings.pool_differences import size_within

log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 64
"""Nodes that are rebuilt side by side."""

SWEEP_SECONDS_MAX: Final = 15.0
"""How long a sweep is waited for."""
SWEEP_AGAIN_SECONDS: Final = 1.0
MISSING_SECONDS: Final = 300.0
MISSING_AFTER: Final = timedelta(seconds=60)
"""An instance is recorded after its node, so that a younger one is no sign of a loss."""

_instance: Final = decoder(InstanceRecord)


class NodeRebuilder:
    """Compares NODES with what else is stored, and writes what it lacks."""

    def __init__(self, bus: Bus, clock: Clock, store: Store) -> None:
        self._bus = bus
        self._clock = clock
        self._store = store
        self._missing_at = 0.0

    async def rebuild(self, pools: Iterable[PoolRecord], *, outdated: bool) -> None:
        """Bring NODES up to INSTANCES, SAGAS and EVENTS; no new node gets the name of an old one.

        Where nothing was lost that costs one read of INSTANCES. `outdated`: agents say otherwise.
        """
        await self._store.nodes.caught_up()
        pools = list(pools)
        behind = [each.name for each in pools if await self._store.openings_lost(each)]
        lost = bool(self._store.losses or behind or outdated)
        if lost:
            await self._record_orphans()
        instances = await self._read_instances()
        nodes = self._store.nodes.records
        wanted = {key for key, each in instances.items() if each.state == "running"}
        wanted |= {node_key(pool.name, name) for pool in pools for name in busy(pool)}
        sagas: dict[str, list[SagaState]] = {}
        if lost or not nodes or wanted - nodes.keys():
            sagas = await self._sagas()
            logs = {each.saga: each for about in sagas.values() for each in about}
            for pool in pools:
                own = [each for each in logs.values() if each.params.pool == pool.name]
                await self._reopen(pool, own)
                await self._await_successors(pool, own)
                await self._restore_conditions(pool)
            await self._rebuild_all({*wanted, *nodes, *sagas}, instances, sagas)
            for pool in pools:
                if not pool.openings:
                    await self._restore_size(pool.name)
        for pool in pools:
            known = {*instances, *nodes, *sagas}
            names = (key.partition(".")[2] for key in known if _is_of(key, pool.name))
            await self._raise_serial(pool, highest_serial(pool.name, names))
        for name in behind:
            await self._store.restore_openings(name)

    async def rebuild_missing(self) -> None:
        """Record the nodes of running instances that NODES lacks, once they are no news.

        A launch that was under way when the whole store was set back is recorded as it ends. It is
        looked for every MISSING_SECONDS, as that reads INSTANCES whole.
        """
        if self._clock.monotonic() < self._missing_at:
            return
        await self._store.nodes.caught_up()
        old, instances = self._clock.now() - MISSING_AFTER, await self._read_instances()
        settled = {
            key
            for key, each in instances.items()
            if each.state == "running" and each.running_at is not None and each.running_at < old
        }
        if missing := settled - self._store.nodes.records.keys():
            log.warning("running, and not recorded as nodes", extra={"nodes": sorted(missing)})
            await self._rebuild_all(missing, instances, await self._sagas())

    async def _read_instances(self) -> dict[str, InstanceRecord]:
        """INSTANCES, read whole; nothing is missing that it has, until MISSING_SECONDS later."""
        self._missing_at = self._clock.monotonic() + MISSING_SECONDS
        entries = await self._bus.entries(INSTANCES)
        return {entry.key: record for entry, record in readable(entries, _instance)}

    async def _record_orphans(self) -> None:
        """Have INSTANCES record instances that only providers know: everything was rolled back.

        Their numbers are above those of the restored records. Provisioners may be starting.
        """
        until, order = self._clock.monotonic() + SWEEP_SECONDS_MAX, "sweep-now"
        while (left := until - self._clock.monotonic()) > 0:
            try:
                reply = await self._bus.request(
                    subjects.order(order, "pool-manager"), b"", timeout_seconds=left
                )
                reply_data(reply)
            except NavarchError as error:
                log.warning("no sweep before the nodes are rebuilt: %s", error)
                await self._clock.sleep(SWEEP_AGAIN_SECONDS)
            else:
                return

    async def _sagas(self) -> dict[str, list[SagaState]]:
        """Every saga, by each node that it names."""
        states: dict[str, SagaState] = {}
        for stored in await self._bus.read(SAGAS.name, subjects.SAGAS):
            saga = saga_of(stored)
            if (state := fold_stored(states.get(saga), stored)) is not None:
                states[saga] = state
        found: dict[str, list[SagaState]] = {}
        for state in states.values():
            params = state.params
            for name in {params.node, params.new_node, params.promotes} - {""}:
                found.setdefault(node_key(params.pool, name), []).append(state)
        return found

    async def _reopen(self, pool: PoolRecord, own: Sequence[SagaState]) -> None:
        """A pool's record that was lost or rolled back knows its sagas again, and their number.

        One that ends meanwhile is closed once more by the audit. One that has ended by the records
        of its nodes has a log that was set back: it must not go on.
        """
        unfinished = {
            each.saga: reopened(each)
            for each in own
            if not (each.ended or each.saga in pool.open or self._has_ended(each))
        }
        began = counted_in_rates(own)
        budget = self._store.fleet_budget
        window, now = 0.0 if lifted(budget) else float(budget.window), self._clock.now()

        def with_sagas(record: PoolRecord) -> PoolRecord:
            record = msgspec.structs.replace(record, open={**unfinished, **record.open})
            return recounted(record, window, now, began)

        if unfinished:
            log.warning("open sagas recorded again", extra={"sagas": sorted(unfinished)})
        await self._store.change_pool(pool.name, with_sagas)

    def _has_ended(self, state: SagaState) -> bool:
        params, records = state.params, self._store.nodes.records
        node, new = (records.get(node_key(params.pool, e)) for e in (params.node, params.new_node))
        return has_ended(state, node, new)

    async def _await_successors(self, pool: PoolRecord, own: Sequence[SagaState]) -> None:
        """A pool's record that was lost or rolled back awaits the nodes that others make again.

        Only those whose predecessor's end is in EVENTS: then their own arrival would be, too.
        """
        found = []
        for each in forgotten(pool, own):
            ended = await last_end(self._bus, pool.name, each.params.node)
            if ended is not None and ended.saga == each.saga:
                found.append(each)
        if not found:
            return
        events = await self._pool_events(pool.name, (NodeReplaced, OperatorNeeded))
        published = {each.id for each in events}
        await self._store.change_pool(
            pool.name, lambda record: awaited_again(record, found, published)
        )

    async def _restore_conditions(self, pool: PoolRecord) -> None:
        """A pool's record that was lost or rolled back knows again what is open by its events."""
        events = await self._pool_events(pool.name, CONDITION_EVENTS)
        await self._store.change_pool(pool.name, lambda record: with_published(record, events))

    async def _pool_events(self, pool: str, kinds: Iterable[type[PoolEvent]]) -> list[PoolEvent]:
        """All stored events of a pool of these kinds, the oldest first."""
        stored: list[Stored] = []
        for kind in kinds:
            subject = subjects.pool_event(pool, POOL_FACTS[kind])
            stored += await self._bus.read(EVENTS.name, subject)
        stored.sort(key=lambda each: each.sequence)
        return [each for each in map(decode_stored, stored) if isinstance(each, PoolEvent)]

    async def _restore_size(self, pool: str) -> None:
        """A pool's record that was made again has a place for each node that serves or comes.

        It was recorded before the nodes that NODES had lost, and without its open sagas.
        """
        nodes = Nodes(self._store.nodes_of(pool))

        def with_places(record: PoolRecord) -> PoolRecord:
            places = size_within(record.spec, size(record, nodes))
            return msgspec.structs.replace(record, desired=max(record.desired, places))

        await self._store.change_pool(pool, with_places)

    async def _rebuild_all(
        self,
        keys: set[str],
        instances: Mapping[str, InstanceRecord],
        sagas: Mapping[str, list[SagaState]],
    ) -> None:
        limit = asyncio.Semaphore(AT_ONCE_MAX)

        async def one(key: str) -> bool:
            async with limit:
                return await self._rebuild_one(key, instances.get(key), sagas.get(key, []))

        changed = await asyncio.gather(*(one(key) for key in sorted(keys)))
        log.warning("nodes compared with the rest", extra={"nodes": len(keys), "of": sum(changed)})

    async def _rebuild_one(
        self, key: str, instance: InstanceRecord | None, sagas: list[SagaState]
    ) -> bool:
        pool, _, node = key.partition(".")
        made_at = instance.created_at if instance is not None else None
        sources = NodeSources(instance, sagas, await self.last_events(pool, node, made_at))
        change = partial(reconstructed_node, name=node, sources=sources, now=self._clock.now())
        before = self._store.nodes.records.get(key)
        return before != await self._store.change_node(pool, node, change)

    async def last_events(
        self, pool: str, node: str, made_at: datetime | None = None
    ) -> list[StoredEvent]:
        """The last event of a node of each kind that its record is made of, and its notices.

        None of an earlier node of its name: others may give a name again. What its own agent has
        said since its machine was `made_at` may be stored before the end of the earlier node.
        """
        ended = await self._bus.last(EVENTS.name, _end_subject(pool, node))
        end = ended.sequence if ended is not None else 0
        found: list[Stored] = []
        for fact in REPLAYED_FACTS:
            subject = subjects.node_event(pool, node, fact)
            last = await self._bus.last(EVENTS.name, subject)
            own = made_at if fact in AGENT_FACTS else None
            if last is None or not _is_about(last, end, own):
                continue
            # Of the cloud's notices several may be in force.
            notices = fact == FACTS[ProviderNotice]
            all_of_them = await self._bus.read(EVENTS.name, subject) if notices else [last]
            found += [each for each in all_of_them if _is_about(each, end, own)]
        events = ((each, decode_stored(each)) for each in found)
        return [
            StoredEvent(stored.sequence, stored.time, event)
            for stored, event in events
            if isinstance(event, NodeEvent)
        ]

    async def _raise_serial(self, pool: PoolRecord, serial: int) -> None:
        """A pool's record that was rolled back would name a new node as an old one."""

        def raised(record: PoolRecord) -> PoolRecord:
            return msgspec.structs.replace(record, serial=max(record.serial, serial))

        if pool.serial < serial:
            await self._store.change_pool(pool.name, raised)


async def last_end(bus: Bus, pool: str, node: str) -> Terminated | None:
    """Return the last end of a node of this name."""
    stored = await bus.last(EVENTS.name, _end_subject(pool, node))
    event = decode_stored(stored) if stored is not None else None
    return event if isinstance(event, Terminated) else None


def _is_about(stored: Stored, end: int, made_at: datetime | None) -> bool:
    """Whether an event is about the node that came after an end, or whose machine was made then."""
    return stored.sequence > end or (made_at is not None and stored.time >= made_at)


def _end_subject(pool: str, node: str) -> str:
    return subjects.node_event(pool, node, FACTS[Terminated])


def _is_of(key: str, pool: str) -> bool:
    return key.startswith(f"{pool}.")
