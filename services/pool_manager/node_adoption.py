"""Records the nodes of instances that a sweep adopts, and retires those that others removed.

An instance is adopted where its node's record was lost, or where others make the pool's nodes.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_events import Terminated
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.bus.port import Bus, Endpoint, Headers
from services.pool_manager.heartbeat_reader import HeartbeatReader
from services.pool_manager.node_rebuilder import last_end
from services.pool_manager.planner.node_reconstruction import (
    NodeSources,
    StoredEvent,
    as_successor,
    is_missed,
    reconstructed_node,
)
from services.pool_manager.planner.saga_projection import ARRIVING
from services.pool_manager.planner.sizing.open_sagas import without_name
from services.pool_manager.planner.sizing.successors import claimed
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

_instance: Final = decoder(InstanceRecord)


class UnknownPoolError(ValueError):
    """The instance is of a pool that does not exist."""


class NameInUseError(ValueError):
    """A saga under way has given the name of the instance to a node that it launches."""


class NodeIsBusyError(ValueError):
    """A saga is about the node, or its record is not there yet."""


class NodeAdoption:
    """Answers the provisioner's request to record a node."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: Store,
        last_events: Callable[[str, str, datetime | None], Awaitable[Sequence[StoredEvent]]],
        reconcile: Callable[[str], Awaitable[None]],
        heartbeat_ttl_seconds: float,
    ) -> None:
        """`last_events` of a node made then; `reconcile` a pool that has one node more or fewer."""
        self._bus = bus
        self._heartbeats = HeartbeatReader(bus)
        self._clock = clock
        self._store = store
        self._last_events = last_events
        self._reconcile = reconcile
        self._expected = timedelta(seconds=heartbeat_ttl_seconds)

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Subject -> what answers it."""
        return {
            subjects.query("adopt-node"): self._adopt,
            subjects.query("retire-node"): self._retire,
        }

    async def _adopt(self, data: bytes, _: Headers) -> bytes:
        instance = _instance.decode(data)
        found_pool = await self._store.pool(instance.pool)
        if found_pool is None:
            raise UnknownPoolError(
                f"there is no pool {instance.pool}: create it with `navarch up` or in the "
                "configuration, then adopt again"
            )
        known = await self._store.fresh_node(instance.pool, instance.instance)
        if known is not None and known.saga and known.state in ARRIVING:
            raise NameInUseError(
                f"{known.saga} launches a node of that name; adopt again when it has ended: see "
                "`navarch saga list`"
            )
        joins = known is None or known.state == "terminated"
        earlier = known is not None and _is_earlier(known, instance)
        decided = _saga_about(found_pool[0], instance.instance) if joins or earlier else ""
        if saga := decided or (known.saga if known is not None and earlier else ""):
            raise NameInUseError(f"{saga} is about an earlier node of that name, and has not ended")
        # Its agent may have registered before: what it said then is applied now.
        events = await self._last_events(instance.pool, instance.instance, instance.created_at)
        sources = NodeSources(instance, (), events)
        ended = await last_end(self._bus, instance.pool, instance.instance)
        now = self._clock.now()
        launched = found_pool[0].spec.nodes == "launched"
        beats = bool(await self._heartbeats.beating(instance.pool, [instance.instance]))

        def adopted(found: NodeRecord | None) -> NodeRecord | None:
            if found is not None and found.state != "terminated":
                return found
            made = reconstructed_node(None, instance.instance, sources, now)
            if made is None:
                return None
            made = as_successor(made, found, ended)
            missed = is_missed(
                made, launched=launched, beats=beats, now=now, expected=self._expected
            )
            return msgspec.structs.replace(made, lost=True, lost_at=now) if missed else made

        if joins:
            name = instance.instance
            await self._store.change_pool(
                instance.pool, lambda found: claimed(without_name(found, name), name)
            )
        record = await self._store.change_node(instance.pool, instance.instance, adopted)
        assert record is not None
        log.info("node adopted", extra={"pool": record.pool, "node": record.node})
        await self._reconcile(record.pool)
        return encode(record)

    async def _retire(self, data: bytes, _: Headers) -> bytes:
        """Others have removed the instance: its node is gone, and the pool expects one fewer."""
        instance = _instance.decode(data)
        known = await self._store.fresh_node(instance.pool, instance.instance)
        if known is None and not self._store.trusted:
            # Its end is published, and HEALTH forgets it, only once its record was rebuilt.
            raise NodeIsBusyError("the records of the nodes are being rebuilt; it is tried again")
        if known is None:
            return data
        if known.state != "terminated":
            known = await self._terminated(known)
        # After the record, as its readers take a node without one for one that is there. A repeat
        # of the order publishes what a process that ended in between has not.
        started = instance.running_at or self._clock.now()
        event = Terminated(
            id=f"retired-{known.node}-{started.timestamp():.0f}",
            time=self._clock.now(),
            pool=known.pool,
            node=known.node,
            sagas=known.sagas,
        )
        await publish_event(self._bus, event)
        await self._reconcile(instance.pool)
        return data

    async def _terminated(self, known: NodeRecord) -> NodeRecord:
        """Record that a node is gone."""
        found_pool = await self._store.pool(known.pool)
        decided = _saga_about(found_pool[0], known.node) if found_pool is not None else ""
        now = self._clock.now()

        def retired(found: NodeRecord | None) -> NodeRecord | None:
            if found is None or found.saga:
                return found
            return msgspec.structs.replace(found, state="terminated", changed_at=now)

        if not (saga := known.saga or decided):
            found = await self._store.change_node(known.pool, known.node, retired) or known
            if found.state == "terminated":
                log.info("node retired", extra={"pool": known.pool, "node": known.node})
                return found
            saga = found.saga
        raise NodeIsBusyError(f"{saga} is about this node; it ends by itself")


def _saga_about(record: PoolRecord, node: str) -> str:
    """The saga about a node that is decided on, even if its log could not be written yet."""
    return next((saga for saga, each in record.open.items() if each.node == node), "")


def _is_earlier(node: NodeRecord, instance: InstanceRecord) -> bool:
    """Whether a node was there before the instance was made: its end may not be recorded yet."""
    admitted_at, created_at = node.admitted_at, instance.created_at
    return admitted_at is not None and created_at is not None and admitted_at < created_at
