"""Decides what a pool needs now: the reconciler. Pure; it takes no hint about what changed.

From what is wanted (the pool's record) and what there is (its nodes) it decides which sagas to
start, within the budget. The shell writes the new record by compare-and-set, and only then starts
the sagas that it names; so two replicas cannot both fill one gap or spend one budget twice.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.fault_signature import RENEWALS
from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner import pool_conditions, shared_ends
from services.pool_manager.planner.disruption_budget import without_counted
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot, earlier, to_come
from services.pool_manager.planner.remediation import drift
from services.pool_manager.planner.remediation.observe_mode import apply_mode
from services.pool_manager.planner.remediation.quarantine import quarantine
from services.pool_manager.planner.remediation.repair import repair
from services.pool_manager.planner.remediation.stopped_plan import stopped
from services.pool_manager.planner.safety import breaker, holds, maintenance_windows
from services.pool_manager.planner.sizing import (
    failed_launches,
    gang_launches,
    on_demand_floor,
    successors,
)
from services.pool_manager.planner.sizing.idle_shutdown import shut_down
from services.pool_manager.planner.sizing.pool_size import resize
from services.pool_manager.planner.sizing.restart_drains import drain_ahead
from services.pool_manager.planner.sizing.withdrawn_notices import give_back
from services.pool_manager.planner.sizing.workload_names import give_up
from services.primitives.backoff import doubled
from services.saga.definitions import DEFINITIONS
from services.saga.definitions.saga_steps import HASTY_CORDON_SECONDS
from services.saga.saga_state import SagaState

RETRY_FIRST_SECONDS: Final = 2.0
RETRY_MAX_SECONDS: Final = 600.0
EXHAUSTED_AGAIN_SECONDS: Final = 10.0
"""After a launch for which there was no capacity: the provisioner remembers what is exhausted, and
asks for it once in a while however many launches wait, so a longer wait would save no calls."""
PROMOTE_AGAIN_SECONDS: Final = 30.0
RENEW_AGAIN_SECONDS: Final = 3600.0
"""After the replacement of a healthy node failed or was cancelled: it is not urgent."""


def plan(snapshot: PoolSnapshot, now: datetime) -> PoolPlan:
    """Decide; with nothing to do the record comes back as it was."""
    snapshot = replace(snapshot, record=shared_ends.observed(snapshot.record, snapshot.nodes, now))
    # The size first: a surplus takes the unhealthy nodes away, and a gap that is being filled is no
    # reason any more to let an unhealthy node wait.
    begun = give_back(snapshot, successors.expect(snapshot, now), now)
    begun = shut_down(snapshot, begun, now)
    decided = repair(snapshot, drain_ahead(snapshot, resize(snapshot, begun, now), now), now)
    decided = on_demand_floor.decided(snapshot, quarantine(snapshot, decided, now))
    record, short = on_demand_floor.reported(snapshot, decided.record, now)
    decided = replace(decided, record=record)
    record, drifted = drift.reported(snapshot, decided.record, now)
    record, found, look_at = pool_conditions.reported(snapshot, record, now)
    decided = replace(
        decided,
        record=record,
        events=(*decided.events, *short, *drifted, *found),
        wake_at=earlier(earlier(decided.wake_at, look_at), _next_opening(decided.record, now)),
        released=holds.over(snapshot.nodes.needs_attention, now),
    )
    return stopped(snapshot, apply_mode(snapshot, decided, now), now)


def _next_opening(record: PoolRecord, now: datetime) -> datetime | None:
    """When a window opens or closes, or a cordon is tried next, after one was refused."""
    edge = maintenance_windows.next_edge(record.spec.windows, now)
    found = earlier(edge, to_come(record.cordon_at, now))
    if record.cordon_refused_at is not None:
        at = record.cordon_refused_at + timedelta(seconds=HASTY_CORDON_SECONDS)
        found = earlier(found, to_come(at, now))
    return found


def close(
    record: PoolRecord,
    saga: str,
    *,
    failed: bool,
    now: datetime,
    how: breaker.Ended | None = None,
    exhausted: bool = False,
    over_spend_cap: bool = False,
    at_cordon: bool = False,
) -> PoolRecord:
    """Take an ended saga off a record; each failure in a row makes the next start wait longer.

    `failed`: a launch did not come up; `exhausted`: for want of capacity; `over_spend_cap`: for a
    spend_cap; `at_cordon`: the workload system did not cordon its node, so that nothing was
    launched. `how`: what it means to the breaker; None: as `failed` says.
    """
    ended = record.open.get(saga)
    if ended is None:
        return record
    before = record
    record = breaker.ended(record, saga, how or ("failed" if failed else "done"), now)
    repeated = ended.kind == "promote"
    if failed and repeated:
        at = now + timedelta(seconds=PROMOTE_AGAIN_SECONDS)
        record = msgspec.structs.replace(record, promote_at=at)
    if (failed or how == "cancelled") and ended.fault_signature in RENEWALS:
        at = _renewed_at(record, ended, now)
        record = msgspec.structs.replace(record, renew_at=at, renew_wait="")
    if how == "done":
        record = successors.await_successor(record, saga, ended, now)
    left = {name: each for name, each in record.open.items() if name != saga}
    record = _with_cordon(record, ended, at_cordon=at_cordon, how=how, now=now)
    failed = failed and not at_cordon
    if ended.launch_failed:  # which was counted when its removal began
        return msgspec.structs.replace(record, open=left)
    if failed and gang_launches.others_open(before, saga):
        return give_up(msgspec.structs.replace(record, open=left), ended.workload_name)
    if failed and not repeated:
        failures = record.failures + 1
        wait = gang_launches.wait_seconds(ended, failures)
        if not wait:
            wait = doubled(RETRY_FIRST_SECONDS, failures, RETRY_MAX_SECONDS)
            wait = min(wait, EXHAUSTED_AGAIN_SECONDS) if exhausted else wait
        retry_at: datetime | None = now + timedelta(seconds=wait)
        over_spend_cap = (
            over_spend_cap and ended.kind == "scale-up" and (record.over_spend_cap or failures == 1)
        )
    elif how != "cancelled" and DEFINITIONS[ended.kind].backs_off and not (repeated or at_cordon):
        failures, retry_at, over_spend_cap = 0, None, False
    else:
        failures, retry_at, over_spend_cap = record.failures, record.retry_at, record.over_spend_cap
    if failed and ended.kind == "scale-up":
        record = give_up(record, ended.workload_name)
    return msgspec.structs.replace(
        record, open=left, failures=failures, retry_at=retry_at, over_spend_cap=over_spend_cap
    )


def _renewed_at(record: PoolRecord, ended: OpenSaga, now: datetime) -> datetime:
    """When a healthy node may be replaced next, after that failed: once the old one goes first."""
    at = now + timedelta(seconds=RENEW_AGAIN_SECONDS)
    limit = float(record.spec.provision_first_for)
    if record.spec.replace_order != "provision_first" or ended.order or not limit:
        return at
    forced = ended.since + timedelta(seconds=limit)
    return min(at, max(forced, now + timedelta(seconds=RETRY_FIRST_SECONDS)))


def freed(record: PoolRecord, state: SagaState, now: datetime) -> PoolRecord:
    """Return the record in which a failed launch holds no place while its machine is removed."""
    if not failed_launches.frees_its_place(record, state):
        return record
    counted = close(record, state.saga, failed=True, now=now, how="failed")
    opened = {**counted.open, state.saga: record.open[state.saga]}
    kept = msgspec.structs.replace(counted, open=opened)
    return failed_launches.with_free_place(kept, state)


def _with_cordon(
    record: PoolRecord,
    ended: OpenSaga,
    *,
    at_cordon: bool,
    how: breaker.Ended | None,
    now: datetime,
) -> PoolRecord:
    """The record with what a saga's end says of the workload system.

    A saga that is refused has disrupted nothing. A quarantine repeats its cordon itself. Dead nodes
    are tried again soon, so their refusals do not count: else the others would wait longer and
    longer.
    """
    repeats = ended.kind == "quarantine" or (ended.kind == "cordon" and ended.spare)
    if at_cordon and not repeats:
        refused = max(record.refused_cordons + (not ended.dead), 1)
        wait = doubled(RETRY_FIRST_SECONDS, refused, RETRY_MAX_SECONDS)
        at = now + timedelta(seconds=HASTY_CORDON_SECONDS if ended.dead else wait)
        return msgspec.structs.replace(
            without_counted(record, ended),
            refused_cordons=refused,
            cordon_at=max(at, record.cordon_at or at),
            cordon_refused_at=now,
        )
    if how == "done" and DEFINITIONS[ended.kind].cordons and not ended.dead:
        return msgspec.structs.replace(
            record, refused_cordons=0, cordon_at=None, cordon_refused_at=None
        )
    return record
