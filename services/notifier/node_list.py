"""Keeps the workload systems' own lists of nodes: nodes that come, go, or fail at launch."""

import asyncio
import logging
from typing import Final

import msgspec

from schemas.instance_records import InstanceRecord
from schemas.messages import Message, decoder
from schemas.node_events import Admitted, Registered, Terminated
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import SagaFailed
from schemas.pool_records import PoolRecord, WorkloadName, pool_key
from schemas.saga_params import WORKLOAD_NAME
from schemas.stored_messages import decode_stored, event_source
from schemas.topology import INSTANCES, NODES, NOTIFIER_NODES, POOLS
from services.bus.bucket_mirror import readable, readable_record
from services.bus.port import Bus
from services.notifier.node_references import read_reference
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    NodeListNotifier,
    NodeReference,
    StepFailure,
)
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Retry
from services.runtime.consumer_loop import Consumer, Received

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 10.0
TRIED_SECONDS_MAX: Final = 86_400.0
"""A workload system that is away this long has been rebuilt, or does not matter."""

REMAINING: Final = frozenset({"terminating", "leaked"})
"""States of instances whose machine still exists."""

_instances = decoder(InstanceRecord)
_nodes = decoder(NodeRecord)
_pools = decoder(PoolRecord)


class MachineRemainsError(Exception):
    """The machine still runs: its daemon would register it again, without its cordon."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"the machine of {node} still exists, so its entry stays, cordoned, until the machine "
            "is gone (see `navarch leaked`); after a day, remove the entry by hand"
        )


class NodeList:
    """Handles the events; records are read again, because an event may come late."""

    def __init__(self, notifiers: PoolNotifiers, bus: Bus, clock: Clock) -> None:
        self._notifiers = notifiers
        self._bus = bus
        self._clock = clock

    def consumer(self) -> Consumer:
        """The consumer; events of one node are handled in order."""
        return Consumer(
            durable=NOTIFIER_NODES, decode=decode_stored, handle=self.handle, key=event_source
        )

    async def handle(self, received: Received[Message]) -> None:
        """Pass one event on to the notifiers of its pool that have such a list."""
        event = received.message
        if not isinstance(event, Registered | Admitted | Terminated | SagaFailed):
            return
        try:
            for each in await self._notifiers.all_of(event.pool):
                if isinstance(each, NodeListNotifier):
                    await self._pass_on(each, event)
        except StepFailure as failure:
            log.warning(
                "the workload system's list of nodes is not kept: %s; %s",
                failure,
                failure.remedy,
                extra={"pool": event.pool, "event": event.id},
            )
        except (BusError, Retry):
            raise
        except Exception as error:
            age = (self._clock.now() - received.stored.time).total_seconds()
            if age < TRIED_SECONDS_MAX:
                raise Retry(f"the workload system: {error}", RETRY_SECONDS) from error
            log.warning("given up: %s", error, extra={"event": event.id})

    async def _pass_on(
        self, notifier: NodeListNotifier, event: Registered | Admitted | Terminated | SagaFailed
    ) -> None:
        if isinstance(event, SagaFailed):
            if event.new_node and not event.node:
                await self._launch_failed(notifier, event)
            return
        reference, entry = await asyncio.gather(
            read_reference(self._bus, event.pool, event.node),
            self._bus.get(NODES, node_key(event.pool, event.node)),
        )
        record: NodeRecord | None = readable_record(entry, _nodes)
        serves = record is not None and record.state not in ("leaving", "terminated")
        match event:
            case Registered() if serves:
                await notifier.node_registered(as_registered(reference, event))
            case Admitted() if serves and record and not record.cordoned:
                if record.saga in ("", event.saga):
                    await notifier.node_admitted(reference)
            case Terminated() if await self._is_free(reference):
                if await self._exists(event):
                    raise MachineRemainsError(event.node)
                await notifier.node_gone(reference)

    async def _launch_failed(self, notifier: NodeListNotifier, event: SagaFailed) -> None:
        reference = await read_reference(self._bus, event.pool, event.new_node)
        last = (await self._pool(event.pool)).get(reference.labels.get(WORKLOAD_NAME, ""))
        if last is None:
            return
        if last.wanted and last.at <= event.time:
            raise Retry("the pool's record still has the launch", 1.0)
        if not last.wanted:  # else the workload system has resumed it again
            await notifier.launch_failed(reference, event.reason, event.saga)

    async def _is_free(self, reference: NodeReference) -> bool:
        """Whether nothing else has the terminated node's name, or will have it."""
        name = reference.labels.get(WORKLOAD_NAME)
        if name is None:
            return True
        last = (await self._pool(reference.pool)).get(name)
        if last is not None and last.wanted:
            return False
        entries = await self._bus.entries(NODES, f"{reference.pool}.*")
        return not any(
            each.launch is not None
            and each.launch.labels.get(WORKLOAD_NAME) == name
            and each.node != reference.node
            and each.state != "terminated"
            for _, each in readable(entries, _nodes)
        )

    async def _exists(self, event: Terminated) -> bool:
        """Whether the machine leaked, or is still being terminated."""
        entry = await self._bus.get(INSTANCES, node_key(event.pool, event.node))
        instance: InstanceRecord | None = readable_record(entry, _instances)
        return instance is not None and instance.state in REMAINING

    async def _pool(self, pool: str) -> dict[str, WorkloadName]:
        record: PoolRecord | None = readable_record(
            await self._bus.get(POOLS, pool_key(pool)), _pools
        )
        return record.workload_names if record else {}


def as_registered(reference: NodeReference, event: Registered) -> NodeReference:
    """The reference with what its agent says, where the record has nothing yet. Pure.

    The pool-manager handles the same event, and decides what the record keeps.
    """
    return msgspec.structs.replace(
        reference,
        hostname=reference.hostname or event.hostname,
        address=reference.address or event.address,
    )
