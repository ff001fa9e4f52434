"""Derives the records of a saga's nodes and of its pool from its log. Pure.

Records are derived from the log as a whole, never from one entry: replicas share the entries of a
saga and may take them in in any order. A record notes the sequence up to which it has taken the log
in, so an older view of the log changes nothing. Steps mean the same in every saga.
"""

from datetime import datetime
from typing import Final

import msgspec

from schemas.enums import NO_ROOM, STOPPED, TEST_FAILED, AttemptOutcome, HealthStatus, NodeState
from schemas.fault_signature import RENEWALS
from schemas.names import saga_number
from schemas.node_records import NodeRecord, Quarantine, RemediationAttempt
from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner import fixed_identity
from services.pool_manager.planner.node_counts import (
    in_place_attempts,
    is_for_silence,
    is_left_by_repair,
    is_operators_cordon,
)
from services.pool_manager.planner.node_projection import launched, with_gpu_cordon
from services.saga.definitions import DEFINITIONS
from services.saga.saga_state import SagaState

ATTEMPTS_MAX: Final = 16
"""Resets and reboots that a node's record remembers: more than any ladder has rungs."""

TESTS_MAX: Final = 8
"""Rechecks that a node's record remembers: more than may begin within a day."""

ARRIVING: Final = ("launching", "registered")
"""States of a node that no saga has brought into service yet."""

# --- records -------------------------------------------------------------------------------------


def leaving_node(record: NodeRecord | None, state: SagaState) -> NodeRecord | None:
    """The record of the node a saga acts on, with the log taken in; unchanged where it is stale."""
    if record is None or not _takes(record, state) or has_left(record, state.saga):
        return record
    cordoned, drained = _cordoned(record, state), _drained_now(record, state)
    record = _with_cordoned_gpus(record, state)
    record = msgspec.structs.replace(
        record,
        saga="" if state.ended else state.saga,
        saga_entry=state.sequence,
        sagas=record.sagas + (1 if state.ended else 0),
        reason=_reason(state),
        state=_leaving_state(record, state),
        cordoned=cordoned,
        cordoned_at=_cordoned_since(record, state, cordoned=cordoned),
        quarantine=_quarantine(record, state, cordoned=cordoned),
        spare=record.spare and cordoned,
        drained=cordoned and drained,
        drain_expired=cordoned and drained and _has_expired(record, state),
        health=_health(record, state),
        losses=() if has_succeeded(state, "uncordon") else record.losses,
        attempts=_attempts(record, state),
        tests=_tests(record, state),
        test_failed_at=_test_failed_at(record, state),
        sole_notice=_ahead_of(record, state, cordoned=cordoned),
        no_room_since=_no_room_since(record, state)
        if cordoned or _is_voluntary(state) or _serves_on(record, state)
        else None,
        promotion_unknown_at=_still_unknown(record, state, cordoned=cordoned),
    )
    return _with_gpu_health(record, state)


def _with_cordoned_gpus(record: NodeRecord, state: SagaState) -> NodeRecord:
    """Which GPUs get no new work, as far as is known, and when the order failed.

    One that failed may have been carried out in part, so it is lifted like any other.
    """
    if state.kind != "cordon-gpus" or not state.ended:
        return record
    wanted = state.params.faulty_gpus
    if has_succeeded(state, "cordon-gpus"):
        return msgspec.structs.replace(record, cordoned_gpus=wanted, gpu_cordon_failed_at=None)
    return msgspec.structs.replace(
        record,
        cordoned_gpus=wanted or record.cordoned_gpus,
        gpu_cordon_failed_at=state.unwinding_at or state.started_at,
    )


def _with_gpu_health(record: NodeRecord, state: SagaState) -> NodeRecord:
    """A node whose GPU is not cordoned, or not repaired, is unhealthy as a whole."""
    health = with_gpu_cordon(record, record.health, record.faulty_gpus)
    unrepaired = state.status == "unwound" and DEFINITIONS[state.kind].remediates
    if unrepaired and record.cordoned and record.faulty_gpus and health == "degraded":
        health = "unhealthy"
    if health == record.health:
        return record
    reason = f"{record.health_reason}; {state.kind} did not succeed: {state.reason}"
    return msgspec.structs.replace(record, health=health, health_reason=reason)


def _ahead_of(record: NodeRecord, state: SagaState, *, cordoned: bool) -> str:
    """The notice for which alone a saga has left the node out of service."""
    if not state.ended or state.kind == "cordon-gpus":  # which leaves the node's cordon as it is
        return record.sole_notice
    if not cordoned:
        return ""
    if state.status == "unwound":  # a reset or reboot that failed leaves it as it was
        return state.params.sole_notice or record.sole_notice
    return state.params.sole_notice if state.kind == "drain" else ""


def _still_unknown(record: NodeRecord, state: SagaState, *, cordoned: bool) -> datetime | None:
    """What is cordoned again, or in service, is no spare of which that is unknown."""
    at = record.promotion_unknown_at
    if at is None or not cordoned or has_succeeded(state, "cordon"):
        return None
    return state.unwinding_at or at


def _no_room_since(record: NodeRecord, state: SagaState) -> datetime | None:
    """When the first of its replacements began that found no room for one node more."""
    launch = state.step("provision")
    if not state.ended or state.params.order == "terminate_first" or launch.status == "pending":
        return record.no_room_since
    expired = "expired" in (launch.status, launch.before)
    failed = state.status == "unwound" and (expired or launch.error in NO_ROOM)
    return (record.no_room_since or state.started_at) if failed else None


def _is_voluntary(state: SagaState) -> bool:
    """Return whether the node stayed in service while its successor was launched."""
    return state.params.fault_signature in RENEWALS


def _serves_on(record: NodeRecord, state: SagaState) -> bool:
    """Return whether a node is given back whose renewal failed after a spare took its place."""
    last = record.attempts[-1] if record.attempts else None
    return state.kind == "uncordon" and last is not None and last.fault_signature in RENEWALS


def promoted_node(record: NodeRecord | None, state: SagaState) -> NodeRecord | None:
    """The record of the spare that takes the place of the node a saga acts on.

    Once it is in service it is a node like any other: what the saga does after that is none of its
    business, and an operator may have cordoned it since.
    """
    if record is None or not _takes(record, state):
        return record
    promoted = _promoted(record, state)
    if promoted and not record.spare:
        # In service already; it may wait for this saga where an earlier, lost log put it there.
        waits = record.saga == state.saga
        return msgspec.structs.replace(record, saga="") if waits else record
    left = promoted or state.ended
    return msgspec.structs.replace(
        record,
        saga="" if left else state.saga,
        saga_entry=state.sequence,
        sagas=record.sagas + (1 if left else 0),
        cordoned=record.cordoned and not promoted,
        cordoned_at=None if promoted else record.cordoned_at,
        spare=record.spare and not promoted,
        drained=record.drained and not promoted,
        drain_expired=record.drain_expired and not promoted,
        promotion_unknown_at=_promotion_unknown_at(record, state, promoted=promoted),
    )


def _promotion_unknown_at(
    record: NodeRecord, state: SagaState, *, promoted: bool
) -> datetime | None:
    """When a promotion ended that may have come into effect without success in its log."""
    promotion = state.step("promote")
    unknown = promotion.status == "expired" or promotion.error == STOPPED
    if promoted:
        return None
    if state.ended and unknown:
        return promotion.ended_at or state.started_at
    return record.promotion_unknown_at


def _promoted(record: NodeRecord, state: SagaState) -> bool:
    return state.params.promotes == record.node and has_succeeded(state, "promote")


def coming_node(record: NodeRecord | None, state: SagaState) -> NodeRecord | None:
    """The record of the node a saga brings, made where there is none."""
    params = state.params
    record = record or NodeRecord(pool=params.pool, node=params.new_node, launch=params.launch)
    if not _takes(record, state) or has_come(record, state.saga):
        return record
    made = {key: str(state.step("provision").outputs.get(key, "")) for key in _PLACE}
    admitted_at = state.step("admit").ended_at if has_succeeded(state, "admit") else None
    if admitted_at is not None:
        made_id = str(state.step("provision").outputs.get("provider_id", ""))
        identity = fixed_identity.at_admission(record, made_id, admitted_at)
        record = msgspec.structs.replace(record, identity=identity)
    return msgspec.structs.replace(
        record,
        saga="" if state.ended else state.saga,
        saga_entry=state.sequence,
        reason=state.reason if state.status == "unwound" else "",
        state=_coming_state(record, state),
        cordoned=_reserved(record, state),
        spare=record.spare if record.state == "active" else state.params.spare,
        admitted_at=record.admitted_at or admitted_at,
        launch=launched(record, state.step("provision").outputs),
        restarts_cold=record.restarts_cold
        or bool(state.step("provision").outputs.get("restarts_cold")),
        **{key: value for key, value in made.items() if value},
    )


_PLACE = ("region", "zone", "address", "host", "market")


def says_more(old: NodeRecord | None, new: NodeRecord, state: SagaState) -> bool:
    """Return whether a record is worth writing: most entries only move how far the log is read.

    What is left unwritten lets an older view in for a moment; the last view of a log is always
    written, and shuts out all others. After an uncordon each is: it wipes a verdict, and once only.
    """
    if old is None or state.ended or state.step("uncordon").status != "pending":
        return new != old
    return new != msgspec.structs.replace(old, saga_entry=new.saga_entry)


def has_left(record: NodeRecord, saga: str) -> bool:
    """Return whether a saga that acted on a node had ended when its record was written."""
    return record.saga != saga and 0 < saga_number(saga) <= record.sagas


def has_come(record: NodeRecord, saga: str) -> bool:
    """Return whether a saga that brought a node had ended when its record was written."""
    return record.saga != saga and record.state not in ARRIVING


def _takes(record: NodeRecord, state: SagaState) -> bool:
    return record.saga in ("", state.saga) and state.sequence > record.saga_entry


def has_succeeded(state: SagaState, step: str) -> bool:
    """Return whether a step has succeeded."""
    return state.step(step).status == "succeeded"


def _cordoned(record: NodeRecord, state: SagaState) -> bool:
    """Whether it is cordoned, as far as is known: a cordon that may have come about counts as one.

    What is cordoned by mistake shows and can be uncordoned; a node without work that is not known
    to be cordoned does not.
    """
    cordon = state.step("cordon")
    match cordon.status, state.step("uncordon").status:
        case _ if _promoted(record, state):
            return False
        case "undone", _:
            return False
        case _, "succeeded":
            return False
        case "succeeded" | "expired", _:
            return True
        case "failed", _ if cordon.error == STOPPED:
            return True
        case _:
            return record.cordoned


def _cordoned_since(record: NodeRecord, state: SagaState, *, cordoned: bool) -> datetime | None:
    """When it was cordoned first, of all cordons without an uncordon between them."""
    if not cordoned:
        return None
    ended_at = state.step("cordon").ended_at
    return record.cordoned_at if record.cordoned else ended_at or state.started_at


def _quarantine(record: NodeRecord, state: SagaState, *, cordoned: bool) -> Quarantine | None:
    """What of its cordon is a quarantine: a repair or an operator's cordon takes it over."""
    found, failed = record.quarantine, state.ended and state.status != "done"
    cordon = state.step("cordon")
    failed_at = (state.unwinding_at or state.started_at) if failed else None
    if state.kind == "quarantine":
        if cordon.status != "succeeded" and not failed:
            return found
        since = found.since if found and record.cordoned else cordon.ended_at or state.started_at
        return Quarantine(reason=state.params.reason, since=since, failed_at=failed_at)
    if failed and found is not None and cordon.status == "failed" and not cordoned:
        # The workload system refuses orders: as after the quarantine's own, the next one waits.
        return msgspec.structs.replace(found, failed_at=failed_at)
    if cordoned and failed and (before := state.params.quarantined_at) is not None:
        return Quarantine(reason=record.health_reason or state.params.reason, since=before)
    if not cordoned or cordon.status in ("succeeded", "expired"):
        return None
    begun = state.step("uncordon").status != "pending"
    if not (failed and begun and state.kind in ("uncordon", "recheck")):
        return found
    if found is None and is_left_by_repair(record) and not state.params.by:
        # What a failed repair left cordoned is well and could not be released: it is tried again.
        found = Quarantine(reason=state.reason, since=record.cordoned_at or state.started_at)
    return found and msgspec.structs.replace(found, failed_at=failed_at)


def _reserved(record: NodeRecord, state: SagaState) -> bool:
    """Whether a node that comes is cordoned; once it is in service others decide that."""
    if record.state == "active":
        return record.cordoned
    return has_succeeded(state, "reserve") and not has_succeeded(state, "open")


def _health(record: NodeRecord, state: SagaState) -> HealthStatus:
    """An uncordon has the node evaluated again: until then it does not count as unhealthy.

    Once, with the view of the log that first shows the uncordon: a verdict that comes after it
    is kept, whatever further entries of the log are taken in.
    """
    uncordon = state.step("uncordon")
    fresh = uncordon.status == "succeeded" and uncordon.sequence > record.saga_entry
    return "unknown" if fresh and record.health in ("degraded", "unhealthy") else record.health


def _attempts(record: NodeRecord, state: SagaState) -> tuple[RemediationAttempt, ...]:
    """The resets and reboots of a node, with this one as its log has it now.

    A replacement is the last of them: where it fails it may leave a cordon that is no operator's.
    """
    if state.kind not in _REMEDIES:
        kept = state.status == "unwound" and state.params.was_cordoned
        if not kept or not is_left_by_repair(record):
            return record.attempts
        last = msgspec.structs.replace(record.attempts[-1], kept_at=record.sagas + 1)
        return (*record.attempts[:-1], last)
    known = next((each for each in record.attempts if each.saga == state.saga), None)
    operators = bool(state.params.by and state.kind == "replace") or is_operators_cordon(record)
    attempt = RemediationAttempt(
        cordoned_by_operator=known.cordoned_by_operator if known else operators,
        saga=state.saga,
        kind=state.kind,
        fault_signature=state.params.fault_signature,
        at=state.started_at,
        outcome=outcome(state),
        tried=not state.ended or state.step(_REMEDIES[state.kind]).status != "pending",
        ended_at=max((e.ended_at for e in state.steps.values() if e.ended_at), default=None)
        if state.ended
        else None,
        reason=state.reason,
        for_silence=is_for_silence(state.kind, state.params),
        unfit=state.step("check").status == "failed",
    )
    return (*in_place_attempts(record.attempts, but=state.saga), attempt)[-ATTEMPTS_MAX:]


_REMEDIES: Final[dict[str, str]] = {"reset-gpu": "reset", "reboot": "reboot", "replace": "cordon"}
"""Kind of saga -> the step that is its remedy."""


def _tests(record: NodeRecord, state: SagaState) -> tuple[datetime, ...]:
    """When its rechecks began, with this one."""
    if state.kind != "recheck" or state.started_at in record.tests:
        return record.tests
    return (*record.tests, state.started_at)[-TESTS_MAX:]


def _test_failed_at(record: NodeRecord, state: SagaState) -> datetime | None:
    test = state.step("check")
    found = state.kind == "recheck" and test.status == "failed" and test.error == TEST_FAILED
    return test.ended_at if found else record.test_failed_at


def outcome(state: SagaState) -> AttemptOutcome:
    """Return what came of a reset or a reboot, as the node's record remembers it."""
    if not state.ended:
        return "open"
    if state.status == "done":
        return "recovered"
    return "cancelled" if state.cancelled else "failed"


def _drained_now(record: NodeRecord, state: SagaState) -> bool:
    return record.drained or state.step("drain").status in ("succeeded", "expired")


def _has_expired(record: NodeRecord, state: SagaState) -> bool:
    status = state.step("drain").status
    return status == "expired" or (record.drain_expired and status != "succeeded")


def _reason(state: SagaState) -> str:
    if not state.ended:
        return state.params.reason
    return state.params.reason if has_succeeded(state, "terminate") else ""


def _leaving_state(record: NodeRecord, state: SagaState) -> NodeState:
    # What is gone stays so, even where the log has lost that it was terminated.
    if has_succeeded(state, "terminate") or record.state == "terminated":
        return "terminated"
    if not DEFINITIONS[state.kind].removes_node:
        return record.state
    return "active" if state.status == "unwound" else "leaving"


def _coming_state(record: NodeRecord, state: SagaState) -> NodeState:
    launch = state.step("provision").status
    if launch == "undone":
        return "terminated"
    if state.status == "unwound":
        # A log that was lost and begun again may not have the launch of a node that has come.
        has_come = launch == "pending" and record.registered_at is not None
        return record.state if has_come else "terminated"
    return "active" if has_succeeded(state, "admit") else record.state


# --- pools ---------------------------------------------------------------------------------------


def follow_up(
    before: PoolRecord, closed: PoolRecord, state: SagaState, now: datetime
) -> PoolRecord:
    """Add what follows a cancelled saga to the record that it leaves, in the same write.

    So no replica finds the node free in between. The ID is in the cancelled saga's log: repeating
    opens nothing more, because the saga is not in the record any more.
    """
    ended = before.open.get(state.saga)
    if ended is None or not state.cancelled or state.status != "unwound":
        return closed
    opened = dict(closed.open)
    if state.then:
        opened[state.then] = OpenSaga(
            kind="uncordon",
            node=ended.node,
            reason=state.reason,
            cause=state.asked,
            cleared_at=state.unwinding_at,
            since=now,
        )
    # Neither a failure nor a success: what is known of launches stays as it was.
    return msgspec.structs.replace(
        closed, open=opened, failures=before.failures, retry_at=before.retry_at
    )
