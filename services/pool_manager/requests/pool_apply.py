"""Pools that people make and remove while the fleet runs: accepted or refused with a reason. Pure.

A pool that is defined in the configuration is the configuration's alone. Any other is what the last
`apply` said, over restarts, until a `remove` has taken its nodes away one by one, each drained like
in any scale-down, and then its record.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from schemas.enums import Refusal
from schemas.launch_fingerprints import configured as with_change_noted
from schemas.operator_requests import ApplyRequest, CompletedRequest, RemoveRequest
from schemas.pool_events import PoolRemoved
from schemas.pool_records import PoolRecord
from schemas.settings import HealthSpec, Mode, PoolSpec
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.requests import request_ordering
from services.pool_manager.requests.request_replies import (
    QueuedRequest,
    RefusedError,
    RequestDecision,
    accepted,
    refused,
)
from services.settings.pool_differences import size_within

VERBS = ("apply", "remove")


@dataclass(frozen=True, slots=True)
class ParsedApply:
    """A parsed `apply` holds what the request says, as the configuration's reader has read it."""

    request: ApplyRequest
    spec: PoolSpec | None
    problem: str = ""
    """What is wrong with it; empty where nothing is."""


def applied(
    asked: QueuedRequest,
    wanted: ParsedApply,
    snapshot: PoolSnapshot | None,
    now: datetime,
    *,
    configured: bool,
    mode: Mode = "act",
    removal: CompletedRequest | None = None,
) -> RequestDecision:
    """Answer an `apply`: make the pool where there is no snapshot, or change it.

    `configured`: the configuration has a pool of that name. `mode`: the fleet's. `removal`: the
    last removal of a pool of that name that is gone.
    """
    spec, record = wanted.spec, snapshot.record if snapshot else None
    if configured:
        return _refused(asked, wanted.request, "wrong-state", _configured(asked.pool), now)
    if spec is None or wanted.problem:
        return _refused(asked, wanted.request, "invalid-request", wanted.problem, now)
    if problem := _not_here(spec):
        return _refused(asked, wanted.request, "invalid-request", problem, now)
    if record is not None and record.removing:
        return _refused(asked, wanted.request, "wrong-state", _going(record), now)
    nodes = wanted.request.nodes
    least, most = spec.min_nodes, spec.max_nodes
    if nodes is not None and not least <= nodes <= most:
        reason = f"{nodes} nodes asked for, which is not between min_nodes {least} and max_nodes"
        return _refused(asked, wanted.request, "invalid-request", f"{reason} {most}", now)
    if nodes is not None and spec.workload_names:
        reason = "a pool with workload_names is sized by `navarch slurm resume`; leave `nodes` out"
        return _refused(asked, wanted.request, "invalid-request", reason, now)
    fresh = record or PoolRecord(name=asked.pool, spec=spec, desired=least)
    if record is not None and request_ordering.completed_requests(asked, record):
        # Answered before, and asked again because the answer was not taken down.
        event = accepted(asked, wanted.request, now, note=_wants(record))
        return RequestDecision(event=event, record=record)
    if last := _later(asked, record, removal):
        return _refused(
            asked, wanted.request, "superseded", request_ordering.superseded_reason(last), now
        )
    spec = msgspec.structs.replace(spec, mode=mode)
    desired = size_within(spec, fresh.desired if nodes is None else nodes)
    fresh = msgspec.structs.replace(fresh, spec=spec, desired=desired, applied=asked.id)
    fresh = with_change_noted(record, fresh, now)
    fresh = request_ordering.remember(asked, request_ordering.POOL, fresh)
    return RequestDecision(
        event=accepted(asked, wanted.request, now, note=_wants(fresh)), record=fresh
    )


def removed(
    asked: QueuedRequest,
    request: RemoveRequest,
    snapshot: PoolSnapshot | None,
    now: datetime,
    *,
    configured: bool,
) -> RequestDecision:
    """Answer a `remove`: from here on the pool wants no node."""
    if snapshot is None:
        reason = f"there is no pool {asked.pool!r}; see navarch status"
        return _refused(asked, request, "unknown-pool", reason, now)
    if configured:
        return _refused(asked, request, "wrong-state", _configured(asked.pool), now)
    record = snapshot.record
    if not record.removing and (last := _later(asked, record)):
        return _refused(asked, request, "superseded", request_ordering.superseded_reason(last), now)
    count = len(snapshot.nodes)
    first = "its node leaves first, when its work has"
    if count != 1:
        first = f"its {count} nodes leave first, each when its work has"
    note = first if count else ""
    if not record.removing:
        changes: dict[str, Any] = {"min_nodes": 0, "max_nodes": 0, "spares": 0, "autoscaling": None}
        if request.mode or request.timeout is not None:
            changes["drain"] = request.mode or "deadline"
        if request.timeout is not None:
            changes["drain_timeout"] = request.timeout
        spec = msgspec.structs.replace(record.spec, **changes)
        record = msgspec.structs.replace(record, spec=spec, desired=0, removing=asked.id)
        record = request_ordering.remember(asked, request_ordering.POOL, record)
    return RequestDecision(event=accepted(asked, request, now, note=note), record=record)


def _later(
    asked: QueuedRequest, record: PoolRecord | None, removal: CompletedRequest | None = None
) -> CompletedRequest | None:
    if record is not None:
        return request_ordering.later(asked, request_ordering.POOL, record)
    return removal if removal is not None and request_ordering.is_later(removal, asked) else None


def is_empty(record: PoolRecord, nodes: int) -> bool:
    """Return whether nothing of a pool that is being removed is left but its record."""
    return bool(record.removing) and not record.open and not nodes


def farewell(record: PoolRecord, now: datetime) -> PoolRemoved:
    """The fact that a pool is gone."""
    return PoolRemoved(
        id=f"pool-removed-{record.name}-{record.removing}",
        time=now,
        cause=record.removing,
        pool=record.name,
    )


def _not_here(spec: PoolSpec) -> str:
    """What of a pool's settings only the configuration can say, as other services read it there."""
    usual = HealthSpec()
    if spec.mode != "act":
        return "mode: a pool made by request acts as the fleet does; leave it out"
    for name in ("unhealthy_after", "incident", "cordon_scope"):
        if getattr(spec.health, name) != getattr(usual, name):
            return f"health.{name} is set in the configuration alone"
    return ""


def _wants(record: PoolRecord) -> str:
    where = ", ".join(each.name for each in record.spec.providers) or record.spec.provider
    return f"it wants {record.desired} of {record.spec.instance_type} at {where}"


def _configured(pool: str) -> str:
    return f"pool {pool} is defined in the configuration; change it there, and restart the services"


def _going(record: PoolRecord) -> str:
    return f"pool {record.name} is being removed; wait until it is gone: navarch why {record.name}"


def _refused(
    asked: QueuedRequest,
    request: ApplyRequest | RemoveRequest,
    refusal: Refusal,
    reason: str,
    now: datetime,
) -> RequestDecision:
    return RequestDecision(event=refused(asked, request, RefusedError(refusal, reason), now))
