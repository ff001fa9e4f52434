"""Compares pool and node records with the saga logs, and resolves what a lost store leaves behind.

Every check reads the record first and the log after it: the log then holds all that the record was
written from, unless it was lost.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from schemas import subjects
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_log_entries import SagaEntry
from schemas.topology import SAGAS
from services.bus.port import Bus
from services.pool_manager.planner import saga_audit
from services.pool_manager.planner.pool_planner import close
from services.pool_manager.planner.saga_projection import ARRIVING
from services.pool_manager.pool_store import Store
from services.pool_manager.saga_effects import SagaEffects
from services.pool_manager.saga_interventions import has_ended
from services.primitives.clock import Clock
from services.primitives.errors import Conflict
from services.runtime.event_publisher import publish_event
from services.saga.coordinator import Coordinator
from services.saga.saga_log import decode_entry
from services.saga.saga_state import SagaState

log = logging.getLogger(__name__)


class SagaAuditor:
    """Brings records and saga logs into agreement."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: Store,
        coordinator: Coordinator,
        effects: SagaEffects,
        begin: Callable[[PoolRecord, str], Awaitable[None]],
    ) -> None:
        """`begin` starts a saga that the pool's record holds, even if it was begun before."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._coordinator = coordinator
        self._effects = effects
        self._begin = begin

    async def audit_saga(self, pool: str, saga: str, opened: OpenSaga) -> None:
        """Bring an open saga on; where its log is lost, shortened or ended, the records follow."""
        node = self._store.nodes.records.get(node_key(pool, opened.node))
        state = await self._coordinator.advance(saga, fresh=True)
        if state is not None:
            state = await self._with_recorded_end(state, node)
        names = (opened.node, opened.new_node, opened.promotes)
        ahead = await self._rewind(pool, saga, names, state.sequence if state else 0)
        if state is None:
            await self._restart(pool, saga)
        elif state.ended or ahead:
            await self._project(saga)

    async def _with_recorded_end(self, state: SagaState, node: NodeRecord | None) -> SagaState:
        """Bring a saga on past a termination whose end its log has lost."""
        end = saga_audit.recorded_end(state, node, self._clock.now())
        if end is None:
            return state
        log.warning(
            "the end of a termination is lost; its node is gone", extra={"saga": state.saga}
        )
        try:
            await self._coordinator.intervene(state, end)
        except Conflict:
            return state  # it has gone on
        return await self._coordinator.advance(state.saga, fresh=True) or state

    async def audit_logs(self) -> None:
        """Remove what is left of the logs of sagas that have ended, where SAGAS has lost its end.

        Before the nodes are audited: their records then forget how far the logs went.
        """
        last = await self._bus.last_sequence(SAGAS.name)
        seen = any(
            saga_audit.has_lost_log(each, last) for each in self._store.nodes.records.values()
        )
        if not (seen or self._coordinator.shortened):
            return
        log.warning("SAGAS has lost its end, or was rolled back", extra={"last": last})
        for saga in await self._coordinator.open_logs():
            state = await self._coordinator.state(saga)
            if state is not None and await has_ended(self._store, state):
                await self._coordinator.drop(saga)

    async def audit_nodes(self, record: PoolRecord) -> None:
        """Free the nodes of a pool that wait for a saga that it does not know."""
        for node in self._store.nodes_of(record.name):
            if saga_audit.is_stranded(node, record):
                await self._unstrand(node.pool, node.node)
        last = await self._bus.last_sequence(SAGAS.name)
        # Of nodes that are gone as well: what a record has seen of an earlier log would later be
        # taken for a sign that the store was restored from a backup.
        for node in list(self._store.nodes.of(record.name)):
            if not node.saga and saga_audit.has_lost_log(node, last):
                await self._store.change_node(node.pool, node.node, _rewound)

    async def _rewind(self, pool: str, saga: str, names: Iterable[str], known: int) -> bool:
        """Let the records of a saga's nodes accept its log, if that is shorter than they saw.

        `known`: a sequence that the log has reached; most records need no look at the log then.
        """
        found = False
        for name in filter(None, names):
            mirrored = self._store.nodes.records.get(node_key(pool, name))
            if mirrored is None or mirrored.saga != saga:
                continue
            if not saga_audit.has_lost_log(mirrored, known):
                continue
            last = await self._bus.last(SAGAS.name, subjects.saga_tree(saga))
            if saga_audit.has_lost_log(mirrored, last.sequence if last else 0):
                log.warning("saga log lost or shortened", extra={"saga": saga, "node": name})
                await self._store.change_node(pool, name, _rewound)
                found = True
        return found

    async def _restart(self, pool: str, saga: str) -> None:
        """Begin a saga without a log, or what is left to do of it."""
        nodes = {each.node: each for each in self._store.nodes.of(pool)}
        found = await self._store.pool(pool)
        opened = found[0].open.get(saga) if found else None
        if found is None or opened is None:
            return
        wanted = saga_audit.restarted(saga, opened, nodes)
        if saga in wanted:
            await self._begin(found[0], saga)
            return
        log.warning("saga log lost", extra={"saga": saga, "instead": sorted(wanted)})
        event = saga_audit.abandoned(pool, saga, opened, wanted, self._clock.now())
        await publish_event(self._bus, event)

        def replaced(record: PoolRecord) -> PoolRecord:
            if saga not in record.open:
                return record
            left = close(record, saga, failed=False, now=self._clock.now(), how="cancelled")
            return msgspec.structs.replace(left, open={**left.open, **wanted})

        await self._store.change_pool(pool, replaced)

    async def _project(self, saga: str) -> None:
        """Bring the effects of a log's last entry about once more."""
        last = await self._bus.last(SAGAS.name, subjects.saga_tree(saga))
        entry = decode_entry(last) if last is not None else None
        state = await self._coordinator.state(saga)
        if state is not None and isinstance(entry, SagaEntry):
            await self._effects.project(state, entry)

    async def _unstrand(self, pool: str, name: str) -> None:
        node = await self._store.fresh_node(pool, name)
        found = await self._store.pool(pool)
        if node is None or found is None or not saga_audit.is_stranded(node, found[0]):
            return
        state = await self._coordinator.state(node.saga) if node.saga else None
        log.warning("stranded node", extra={"node": name, "saga": node.saga})
        if state is not None and state.ended:
            await self._rewind(pool, node.saga, (name,), state.sequence)
            await self._project(node.saga)
            return
        if state is not None:
            opened = {state.saga: saga_audit.reopened(state)}
        elif node.state in ARRIVING:
            since = self._clock.now()
            opened = saga_audit.completion(name, spare=node.spare, since=since)
        else:
            opened = {}
        if opened:
            # In the record first: the node then counts as busy, and is decided on by no one else.
            await self._store.change_pool(pool, lambda each: _with_open(each, opened))
        if state is None:
            await self._store.change_node(
                pool, name, lambda each: each and _released(each, node.saga)
            )


def _with_open(record: PoolRecord, opened: dict[str, OpenSaga]) -> PoolRecord:
    return msgspec.structs.replace(record, open={**opened, **record.open})


def _rewound(record: NodeRecord | None) -> NodeRecord | None:
    return record and msgspec.structs.replace(record, saga_entry=0)


def _released(record: NodeRecord, saga: str) -> NodeRecord:
    return saga_audit.released(record) if record.saga == saga else record
