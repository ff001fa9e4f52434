"""Brings the effects of saga entries about: records changed, facts published, pools closed."""

from collections.abc import Awaitable, Callable

import msgspec

from schemas.enums import OVER_CAP
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import (
    SagaDone,
    SagaEntry,
    SagaUnwinding,
    SagaUnwound,
    StepExpired,
    StepStarted,
    StepSucceeded,
    UndoSucceeded,
)
from services.bus.port import Bus
from services.pool_manager.hardware_store import HardwareList
from services.pool_manager.planner.admission import admission_refusals
from services.pool_manager.planner.admission.denied_hardware import (
    condemned,
    dead_on_arrival,
    is_of_its_kind,
)
from services.pool_manager.planner.fixed_identity import changed_event
from services.pool_manager.planner.pool_planner import close, freed
from services.pool_manager.planner.safety.breaker import Ended
from services.pool_manager.planner.safety.fault_waves import (
    UnhealthyNode,
    belongs,
    fault_signature,
    unhealthy_since,
)
from services.pool_manager.planner.saga_events import events_of
from services.pool_manager.planner.saga_projection import (
    coming_node,
    follow_up,
    leaving_node,
    promoted_node,
    says_more,
)
from services.pool_manager.pool_store import Store
from services.runtime.event_publisher import publish_event
from services.saga.definitions import DEFINITIONS
from services.saga.saga_state import SagaState


class SagaEffects:
    """Applies what a saga's log means for records, events and hardware."""

    def __init__(
        self,
        bus: Bus,
        store: Store,
        hardware: HardwareList,
        reconcile: Callable[[str], Awaitable[None]],
    ) -> None:
        """`reconcile` looks at a pool again once a saga has left it."""
        self._hardware = hardware
        self._bus = bus
        self._store = store
        self._reconcile = reconcile

    async def project(self, state: SagaState, entry: SagaEntry) -> None:
        """Bring one entry's effects about; twice changes nothing more."""
        params = state.params

        def leaving(record: NodeRecord | None) -> NodeRecord | None:
            return _changed_at(record, leaving_node(record, state), state, entry)

        def coming(record: NodeRecord | None) -> NodeRecord | None:
            return _changed_at(record, coming_node(record, state), state, entry)

        def promoted(record: NodeRecord | None) -> NodeRecord | None:
            return _changed_at(record, promoted_node(record, state), state, entry)

        left: NodeRecord | None = None
        if params.node:
            left = await self._store.change_node(params.pool, params.node, leaving)
        came: NodeRecord | None = None
        if params.new_node:
            came = await self._store.change_node(params.pool, params.new_node, coming)
            await self._publish_identity(came, entry)
        if params.promotes and params.promotes != params.node:
            await self._store.change_node(params.pool, params.promotes, promoted)
        await self._publish(state, entry)
        if left is not None and self._calls_for_a_look(state, entry, left):
            await self._reconcile(params.pool)
        await self._condemn(state, entry, left, came)
        if isinstance(entry, SagaUnwinding) and state.status == "unwinding":
            await self._free_place(state, entry)
        if isinstance(entry, SagaDone | SagaUnwound):
            await self._close(state, entry)

    async def make_up(self, state: SagaState, entry: SagaEntry) -> None:
        """Bring about what the projection of a later entry does not: events, and bad hardware."""
        params = state.params
        await self._publish(state, entry)
        names = (params.node, params.new_node)
        left, came = [
            await self._store.fresh_node(params.pool, name) if name else None for name in names
        ]
        await self._condemn(state, entry, left, came)

    async def _publish(self, state: SagaState, entry: SagaEntry) -> None:
        for event in events_of(state, entry):
            await publish_event(self._bus, event)

    async def _publish_identity(self, came: NodeRecord | None, entry: SagaEntry) -> None:
        """Publish that a node was admitted whose agent names another instance than its provider."""
        if came is None or not isinstance(entry, StepSucceeded) or entry.step != "admit":
            return
        if (changed := changed_event(came, entry.id, entry.time)) is not None:
            await publish_event(self._bus, changed)

    async def _condemn(
        self,
        state: SagaState,
        entry: SagaEntry,
        left: NodeRecord | None,
        came: NodeRecord | None,
    ) -> None:
        """Remember the bad hardware of a node that is gone, or was not admitted."""
        if isinstance(entry, StepSucceeded) and entry.step == "terminate":
            waves = self._in_incident(left)
            await self._hardware.condemn(condemned(state, left, entry.time, in_incident=waves))
        elif isinstance(entry, UndoSucceeded) and entry.step == "provision":
            bad = dead_on_arrival(
                *(state, came, entry.time),
                in_incident=self._in_incident(came),
                others_serve=self._others_serve(came),
            )
            await self._hardware.condemn(bad)

    def _in_incident(self, node: NodeRecord | None) -> bool:
        """Whether many nodes of the pool have what this one has."""
        found = self._store.last_read(node.pool) if node is not None else None
        what = fault_signature(node) if node is not None else ""
        since = unhealthy_since(node) if node is not None else None
        if found is None or node is None or since is None:
            return False
        unhealthy = UnhealthyNode(node=node, what=what, since=since)
        return any(belongs(unhealthy, key, each) for key, each in found[0].incidents.items())

    def _others_serve(self, node: NodeRecord | None) -> bool:
        """Whether a node that was not admitted is the first in a row, and others of its kind serve.

        Of many that fail in a row the image may be the cause.
        """
        found = self._store.last_read(node.pool) if node is not None else None
        if node is None or found is None or found[0].refusals:
            return False
        return any(is_of_its_kind(each, node) for each in self._store.nodes_of(node.pool))

    def _calls_for_a_look(self, state: SagaState, entry: SagaEntry, node: NodeRecord) -> bool:
        """Whether an entry changes more than its saga's nodes.

        A drain that begins when the cloud is about to take its node ends at once; and once a repair
        has cordoned its node, another may be quarantined.
        """
        if isinstance(entry, StepStarted) and node.notices:
            return True
        found = self._store.last_read(state.params.pool)
        full = found is not None and found[0].quarantine_full
        cordoned = isinstance(entry, StepSucceeded | StepExpired) and entry.step == "cordon"
        return full and cordoned and DEFINITIONS[state.kind].remediates

    async def _free_place(self, state: SagaState, entry: SagaUnwinding) -> None:
        """Let the pool launch another one while what a failed launch has made is removed."""
        found = self._store.last_read(state.params.pool)
        if found is not None and freed(found[0], state, entry.time) is not found[0]:
            await self._store.change_pool(
                state.params.pool, lambda old: freed(old, state, entry.time)
            )
            await self._reconcile(state.params.pool)

    async def _close(self, state: SagaState, entry: SagaDone | SagaUnwound) -> None:
        """Take an ended saga off its pool, last of all: until then its nodes are spoken for."""
        pool = state.params.pool
        failed = isinstance(entry, SagaUnwound) and DEFINITIONS[state.kind].backs_off
        failed = failed and not state.cancelled
        await self._publish_refusal(state, entry)

        def closed(old: PoolRecord) -> PoolRecord:
            left = close(
                old,
                state.saga,
                failed=failed,
                now=entry.time,
                how=_how(state, entry),
                exhausted=state.step("provision").error == "CAPACITY",
                over_spend_cap=state.step("provision").error in OVER_CAP,
                at_cordon=_is_at_cordon(state, entry),
            )
            left = admission_refusals.count_refusal(old, left, state, entry.time)
            return follow_up(old, left, state, entry.time)

        await self._store.change_pool(pool, closed)
        await self._reconcile(pool)

    async def _publish_refusal(self, state: SagaState, entry: SagaEntry) -> None:
        """Publish a refusal at admission, while the pool's record has its saga."""
        if not admission_refusals.is_refusal(state):
            return
        found = await self._store.pool(state.params.pool)
        fact = (
            admission_refusals.refusal_event(found[0], state, entry.time, entry.id)
            if found
            else None
        )
        if fact is not None:
            await publish_event(self._bus, fact)


def _how(state: SagaState, entry: SagaDone | SagaUnwound) -> Ended:
    if isinstance(entry, SagaDone):
        return "done"
    return "cancelled" if state.cancelled else "failed"


def _is_at_cordon(state: SagaState, entry: SagaDone | SagaUnwound) -> bool:
    """Whether a saga ended because the workload system did not cordon its node."""
    return isinstance(entry, SagaUnwound) and not state.cancelled and state.failed_step == "cordon"


def _changed_at(
    old: NodeRecord | None, new: NodeRecord | None, state: SagaState, entry: SagaEntry
) -> NodeRecord | None:
    if new is None or not says_more(old, new, state):
        return None
    return msgspec.structs.replace(new, changed_at=entry.time)
