"""A workload system calls back when the work has left a node that is being drained.

A callback ends no drain by itself: the replica that waits asks its notifier at once, which is
given `called_back` with the node. One about another saga or node, or too late, is refused.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Final

import msgspec

from schemas import subjects
from schemas.messages import decoder, encode
from schemas.node_events import FACTS, WorkLeft
from schemas.node_records import NodeRecord, node_key
from schemas.permissions import WORK_DONE
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES
from schemas.work_done import WorkDone, WorkDoneAccepted
from services.bus.bucket_mirror import readable
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.notifier.work_report import last_event
from services.notifier.workload.drain_watch import DrainWatch
from services.notifier.workload.workload_notifier import WorkloadOrder
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.runtime.event_publisher import publish_event
from services.saga.saga_log import read_state
from services.saga.saga_state import SagaState

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Between two tries to read whether an earlier replica's drain was called back."""

_nodes = decoder(NodeRecord)


class NotDrainingError(ValueError):
    """The callback is about no drain that waits."""


class DrainCallbacks:
    """The callbacks that the drains of one replica wait for."""

    def __init__(self, bus: Bus, clock: Clock, watches: Collection[DrainWatch]) -> None:
        """`watches`: the replica's open drains."""
        self._bus = bus
        self._clock = clock
        self._watches = watches

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Subject -> endpoint."""
        return {subjects.order_wildcard(WORK_DONE): self._answer}

    async def run(self) -> None:
        """Hand every accepted callback, of any replica, to the drain that waits for it."""
        callbacks = subjects.node_event_wildcard(FACTS[WorkLeft])
        async for stored in self._bus.follow(EVENTS.name, [callbacks], "new"):
            event = decode_stored(stored)
            if isinstance(event, WorkLeft):
                self._call_back(event.saga)

    async def recall(self, order: WorkloadOrder) -> None:
        """Hand over a callback that came before this drain began to wait; never returns."""
        while True:
            try:
                if await self._was_called_back(order.node.pool, order.node.node, order.saga):
                    self._call_back(order.saga)
            except BusError as error:
                log.warning("callbacks are not read; trying again", extra={"reason": str(error)})
                await self._clock.sleep(RETRY_SECONDS)
            else:
                await asyncio.Event().wait()

    def _call_back(self, saga: str) -> None:
        for each in self._watches:
            each.call_back(saga)

    async def _answer(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=WorkDone)
        by = requester(headers, asked.by)
        saga = asked.saga or await self._saga_of(asked.node)
        state = await read_state(self._bus, saga) if saga else None
        if state is None or state.params.node != asked.node:
            raise NotDrainingError(
                f"{saga or 'no saga'} drains {asked.node}: nothing was changed; "
                f"see navarch get {asked.node}"
            )
        pool = state.params.pool
        if not await self._was_called_back(pool, asked.node, saga):
            if not is_draining(state):
                raise NotDrainingError(
                    f"{saga} does not wait for work on {asked.node} (now): nothing was changed; "
                    f"see navarch saga show {saga}"
                )
            event = WorkLeft(
                id=f"work-left-{saga}",
                pool=pool,
                node=asked.node,
                time=self._clock.now(),
                saga=saga,
                by=by,
            )
            await publish_event(self._bus, event)
            log.info("work has left a node", extra={"node": asked.node, "saga": saga, "by": by})
        return encode(WorkDoneAccepted(pool=pool, node=asked.node, saga=saga))

    async def _saga_of(self, node: str) -> str:
        """The saga that works on a node; empty: none does."""
        entries = await self._bus.entries(NODES, node_key("*", node))
        return next((each.saga for _, each in readable(entries, _nodes) if each.saga), "")

    async def _was_called_back(self, pool: str, node: str, saga: str) -> bool:
        event = await last_event(self._bus, WorkLeft, pool, node)
        return event is not None and event.saga == saga


def is_draining(state: SagaState) -> bool:
    """Whether a saga has asked the work on its node to leave, and waits for it. Pure."""
    status = state.step("drain").status
    asked = state.step("vacate").status in ("started", "succeeded")
    return state.status == "running" and (status == "started" or (status == "pending" and asked))
