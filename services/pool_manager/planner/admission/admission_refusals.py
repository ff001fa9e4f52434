"""Launches elsewhere, a bounded number of times, where admission refuses new nodes. Pure.

The instance of a refused node is terminated by its saga's undo; the pool then launches again, in
another zone first where its spec names several. After so many refusals in a row an operator is
notified, and the next is tried an hour later, or when an operator scales the pool.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.enums import MISPLACED
from schemas.pool_events import NodeRefused
from schemas.pool_records import PoolRecord
from services.saga.saga_state import SagaState

CHECKING: Final = ("register", "check", "admit")
"""Steps whose failure says something about the node; a deadline that passed does not."""
AVOID_SECONDS: Final = 3600.0
ZONES_MAX: Final = 32
AGAIN_SECONDS: Final = 3600.0
"""After `attempts` refusals in a row."""


def is_refusal(state: SagaState) -> bool:
    """Return whether a saga was unwound because its new node must not have work."""
    return (
        state.status == "unwound"
        and bool(state.params.new_node)
        and not state.cancelled
        and state.failed_step in CHECKING
        and state.step(state.failed_step).status == "failed"
    )


def count_refusal(
    before: PoolRecord, closed: PoolRecord, state: SagaState, now: datetime
) -> PoolRecord:
    """The pool's record after a saga has left it, with what admission made of its new node."""
    if state.saga not in before.open or not state.params.new_node:
        return closed
    if state.status == "done":
        return msgspec.structs.replace(closed, refusals=0, avoid={}) if closed.refusals else closed
    if not is_refusal(state):
        return closed
    refusals = before.refusals + 1
    zone = _zone(state)
    avoid = {name: at for name, at in before.avoid.items() if at > now}
    if zone:
        avoid[zone] = now + timedelta(seconds=AVOID_SECONDS)
    kept = dict(sorted(avoid.items(), key=lambda each: each[1])[-ZONES_MAX:])
    closed = msgspec.structs.replace(closed, refusals=refusals, avoid=kept)
    if refusals >= before.spec.admission.attempts:
        again = now + timedelta(seconds=AGAIN_SECONDS)
        closed = msgspec.structs.replace(closed, retry_at=again)
    return closed


def reset_refusals(record: PoolRecord) -> PoolRecord:
    """The record where a person wants the next launch now."""
    if not record.refusals and not record.spec.placement.required:
        return record
    return msgspec.structs.replace(record, refusals=0, retry_at=None)


def zones(spec_zones: tuple[str, ...], avoid: Mapping[str, datetime]) -> tuple[str, ...]:
    """The zones to launch in, those last from which hardware was refused lately."""
    return tuple(sorted(spec_zones, key=lambda zone: zone in avoid))


def refusal_event(
    before: PoolRecord, state: SagaState, now: datetime, cause: str
) -> NodeRefused | None:
    """The event of a refusal; None where there is none, or it was published already."""
    if state.saga not in before.open or not is_refusal(state):
        return None
    attempts = before.spec.admission.attempts
    attempt = before.refusals + 1
    return NodeRefused(
        id=f"refused-{state.saga}",
        time=now,
        cause=cause,
        pool=before.name,
        node=state.params.new_node,
        saga=state.saga,
        step=state.failed_step,
        reason=state.reason,
        zone=_zone(state),
        attempt=attempt,
        attempts=attempts,
        remedy=_remedy(before, state) if attempt >= attempts else "",
    )


def _remedy(record: PoolRecord, state: SagaState) -> str:
    do = (
        "have the provider take the hardware out, or change the pool's zones, instance type or "
        "admission"
    )
    if state.step(state.failed_step).error == MISPLACED:
        do = (
            "have the provider launch in the pool's racks, or give the incomplete rack up: navarch "
            f"scale {record.name} {max(record.desired - record.spec.rack.nodes, 0)}, then back"
        )
    return (
        f"{do}; the next try is in {AGAIN_SECONDS / 60:.0f} min, and at once after: navarch "
        f"scale {record.name} {record.desired}"
    )


def _zone(state: SagaState) -> str:
    return str(state.step("provision").outputs.get("zone", ""))
