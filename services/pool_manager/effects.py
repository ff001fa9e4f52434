"""Brings the effects of saga entries about: records changed, facts published, pools closed."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import assert_never

import msgspec

from schemas import node_events as ne
from schemas import pool_events as pe
from schemas import subjects
from schemas.messages import Message, encode
from schemas.records import NodeRecord
from schemas.sagas import SagaEntry
from services.pool_manager.core import close
from services.pool_manager.projection import (
    ChangeNode,
    CloseSaga,
    Effect,
    NewNode,
    Publish,
    effects,
)
from services.pool_manager.store import Store
from services.runtime.bus import Bus
from services.runtime.tracing import current_headers
from services.saga.log import SagaState

log = logging.getLogger(__name__)


class Effects:
    """Applies what `projection` decides."""

    def __init__(self, bus: Bus, store: Store, reconcile: Callable[[str], Awaitable[None]]) -> None:
        """`reconcile` looks at a pool again once a saga has left it."""
        self._bus = bus
        self._store = store
        self._reconcile = reconcile

    async def project(self, state: SagaState, entry: SagaEntry) -> None:
        """Bring one entry's effects about; twice changes nothing more."""
        for effect in effects(state, entry):
            await self._apply(state, entry, effect)

    async def _apply(self, state: SagaState, entry: SagaEntry, effect: Effect) -> None:
        pool = state.params.pool
        match effect:
            case NewNode(record=record):
                await self._store.change_node(pool, record.node, partial(_new, record))
            case ChangeNode(node=node):
                await self._store.change_node(pool, node, partial(_changed, state.saga, effect))
            case Publish(event=event):
                await self.publish(event)
            case CloseSaga(failed=failed):
                await self._store.change_pool(
                    pool, lambda old: close(old, state.saga, failed=failed, now=entry.time)
                )
                await self._reconcile(pool)
            case _:
                assert_never(effect)

    async def publish(self, event: Message) -> None:
        """Publish a fact about a node or a pool."""
        if isinstance(event, pe.PoolEvent):
            subject = subjects.pool_event(event.pool, pe.FACTS[type(event)])
        else:
            assert isinstance(event, ne.NodeEvent)
            subject = subjects.node_event(event.pool, event.node, ne.FACTS[type(event)])
        await self._bus.publish(subject, encode(event), msg_id=event.id, headers=current_headers())


def _new(wanted: NodeRecord, record: NodeRecord | None) -> NodeRecord | None:
    return record or wanted


def _changed(saga: str, effect: ChangeNode, record: NodeRecord | None) -> NodeRecord | None:
    if record is None or not (record.saga == saga or (effect.take and record.saga == "")):
        # The saga has given the node back already: this is a redelivery.
        return None
    changed = msgspec.structs.replace(record, **effect.fields)
    if effect.ended:
        changed = msgspec.structs.replace(changed, sagas=record.sagas + 1)
    return changed
