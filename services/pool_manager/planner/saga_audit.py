"""Decides what to do where records and saga logs disagree: a store was lost or rolled back. Pure.

A record is written from a log that was read before it. A log that ends before what a record has
seen was therefore lost or cut short, and the record accepts the log as it is now.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from schemas.fault_signature import RACK
from schemas.node_records import NodeRecord
from schemas.pool_events import SagaCancelled
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_log_entries import StepSucceeded
from schemas.saga_params import traits_of
from services.pool_manager.planner.disruption_budget import Rate, rate_of
from services.pool_manager.planner.node_counts import busy
from services.pool_manager.planner.saga_projection import ARRIVING, has_come, has_left
from services.pool_manager.planner.sizing.open_sagas import saga_id
from services.saga.definitions import DEFINITIONS
from services.saga.definitions.saga_steps import TERMINATE
from services.saga.saga_state import SagaState

LOST: Final = "its log is lost"


def has_lost_log(record: NodeRecord, last: int) -> bool:
    """Return whether a record has seen more than the log holds, whose last sequence is `last`."""
    return record.saga_entry > last


def has_ended(state: SagaState, node: NodeRecord | None, new_node: NodeRecord | None) -> bool:
    """Return whether a saga has ended by the records of its nodes; its log may lack the end."""
    if state.params.node:
        return node is not None and has_left(node, state.saga)
    return new_node is not None and has_come(new_node, state.saga)


def restarted(saga: str, opened: OpenSaga, nodes: Mapping[str, NodeRecord]) -> dict[str, OpenSaga]:
    """Return what takes the place of an open saga whose log is lost.

    Steps are idempotent, so it begins again under its ID. Where its node is gone, only the node
    that it brings is left to do.
    """
    old, new = nodes.get(opened.node), nodes.get(opened.new_node)
    if old is None or old.state != "terminated":
        return {saga: opened}
    if not opened.new_node or (new is not None and new.state in ("active", "terminated")):
        return {}
    return completion(opened.new_node, spare=opened.spare, since=opened.since)


def abandoned(
    pool: str, saga: str, opened: OpenSaga, instead: Mapping[str, OpenSaga], now: datetime
) -> SagaCancelled:
    """The end of a saga whose log was lost after it had terminated its node: it has no other."""
    return SagaCancelled(
        id=f"lost-{saga}",
        time=now,
        pool=pool,
        saga=saga,
        step="terminate",
        reason=LOST,
        node=opened.node,
        new_node=opened.new_node,
        node_gone=True,
        then=next(iter(instead), ""),
    )


def completion(node: str, *, spare: bool, since: datetime) -> dict[str, OpenSaga]:
    """The saga that brings a node into service whose own saga is lost."""
    opened = OpenSaga(kind="scale-up", new_node=node, spare=spare, reason=LOST, since=since)
    return {saga_id("scale-up", None, node): opened}


def reopened(state: SagaState) -> OpenSaga:
    """An unfinished saga as a pool's record has it that does not know it."""
    return OpenSaga(kind=state.kind, **traits_of(state.params), since=state.started_at)


def counted_in_rates(sagas: Iterable[SagaState]) -> list[tuple[datetime, Rate]]:
    """Return the remediations that a pool's rates count, by their logs: when each began, and where.

    Of the sagas that replace a rack as a whole one counts; their reason, which names it, is the
    same. Operators' requests are bound by no rate, a node whose instance was gone was out of
    service before, and a saga that was refused its cordon has disrupted nothing.
    """
    began: dict[str, tuple[datetime, Rate]] = {}
    for each in sagas:
        params = each.params
        refused = each.status == "unwound" and each.failed_step == "cordon" and not each.cancelled
        free = bool(params.by) or params.gone or refused
        if DEFINITIONS[each.kind].remediates and not free:
            whole = params.fault_signature == RACK
            decision = f"{each.started_at} {params.reason}" if whole else each.saga
            began[decision] = (each.started_at, rate_of(reopened(each)))
    return list(began.values())


def recorded_end(state: SagaState, node: NodeRecord | None, now: datetime) -> StepSucceeded | None:
    """Return the end of a node's termination that its record has seen and a cut log lacks.

    Its participant has answered, and does nothing more; the step would wait for its deadline.
    """
    if state.ended or state.step(TERMINATE.name).status != "started":
        return None
    if node is None or (node.state, node.saga) != ("terminated", state.saga):
        return None
    return StepSucceeded(
        id=f"{state.saga}.{TERMINATE.name}.recorded",
        time=now,
        cause=state.last_id,
        saga=state.saga,
        step=TERMINATE.name,
    )


def is_stranded(record: NodeRecord, pool: PoolRecord) -> bool:
    """Return whether a node waits for a saga that its pool does not know."""
    if record.node in busy(pool) or record.state == "terminated":
        return False
    return bool(record.saga) or record.state in (*ARRIVING, "leaving")


def released(record: NodeRecord) -> NodeRecord:
    """The record of a stranded node without its saga: what it needs is decided again."""
    return msgspec.structs.replace(
        record,
        saga="",
        saga_entry=0,
        sagas=record.sagas + 1,
        state="active" if record.state == "leaving" else record.state,
    )
