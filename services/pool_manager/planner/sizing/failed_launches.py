"""Frees the place of a launch that failed while its machine is still being removed. Pure.

The removal goes on as it was begun, with its own reports. The pool launches another one after the
wait that follows any failed launch, wherever there is room.
"""

from datetime import datetime
from typing import Final

import msgspec

from schemas.duration import format_duration
from schemas.enums import DEADLINE_PASSED
from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.sizing.found_condition import FoundCondition
from services.saga.saga_state import SagaState

AFTER_SECONDS: Final = 5.0
"""A machine that is removed within this time is no matter for a person."""
NAMED_MAX: Final = 5
SEEN: Final = {
    "bootstrap": "its set-up did not end",
    "register": "its agent never registered",
    "admit": "its boot checks have not passed",
}
"""Step that did not end in time -> what was seen last of the machine."""


def frees_its_place(record: PoolRecord, state: SagaState) -> bool:
    """Return whether a launch has failed whose machine holds a place until it is removed."""
    opened = record.open.get(state.saga)
    if opened is None or opened.called_off or opened.gang or state.cancelled:
        return False
    launch = state.step("provision")
    made = "succeeded" in (launch.status, launch.before)
    alone = opened.kind == "scale-up" or state.step("terminate").status in ("succeeded", "expired")
    return bool(opened.new_node) and made and alone


def with_free_place(record: PoolRecord, state: SagaState) -> PoolRecord:
    """Return the record in which a failed launch counts no more, with what was seen of it."""
    opened, spec = record.open[state.saga], record.spec
    words = SEEN.get(state.failed_step, state.reason)
    if state.reason != DEADLINE_PASSED:
        words = state.reason
    limit = format_duration(spec.launch_timeout)
    failed = msgspec.structs.replace(
        opened, called_off=f"{words} (launch_timeout: {limit})", launch_failed=True
    )
    return msgspec.structs.replace(record, open={**record.open, state.saga: failed})


def removal_pending(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> FoundCondition | None:
    """Return what is published of machines whose launch failed and that are still there."""
    del snapshot, now
    found = [each for each in record.open.values() if each.launch_failed]
    if not found:
        return None
    named = "; ".join(_words(each) for each in found[:NAMED_MAX])
    return FoundCondition(
        reason=f"{len(found)} launches failed, and their machines are not removed yet: {named}",
        remedy="navarch leaked shows the removals; where machines only boot slowly, "
        "raise launch_timeout",
        after_seconds=AFTER_SECONDS,
    )


def _words(opened: OpenSaga) -> str:
    return f"{opened.new_node}: {opened.called_off}"
