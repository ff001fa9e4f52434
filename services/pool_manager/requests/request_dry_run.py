"""Describes what a request would do, from the very decision that answers it. Pure."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from schemas.dry_run import DryRun, DryRunOffering, DryRunRequest, DryRunStep, Gate
from schemas.node_records import NodeRecord
from schemas.pool_events import RequestAccepted, RequestRefused, Scaled, ScaleRefused
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_params import SagaParams
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.disruption_budget import Allowance, allowance
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import busy, takes_out_no_more
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.safety import stop_gate
from services.pool_manager.planner.sizing.open_sagas import why_full
from services.pool_manager.requests.node_refusals import node_refusal
from services.pool_manager.requests.request_replies import QueuedRequest, RequestDecision
from services.saga.definition import Definition
from services.saga.definitions import DEFINITIONS, ON_REQUEST

Params = Callable[[str, PoolRecord, OpenSaga], SagaParams]
ENDING_STEPS: Final = frozenset({"drain", "terminate", "reboot", "reset-gpu"})
"""Steps before or by which the work on a node ends."""
ASKED: Final = "dry-run"
"""In place of the request's id: nothing that carries it is ever written."""


def rehearsed(request: DryRunRequest, pool: str, now: datetime) -> QueuedRequest:
    """Return the request as it would be queued."""
    fields = msgspec.json.decode(request.request or b"{}", type=dict[str, Any])
    about = {"node": request.node} if request.node else {}
    return QueuedRequest(
        id=ASKED,
        time=now,
        pool=pool,
        verb=request.verb,
        payload=msgspec.json.encode({**fields, **about}),
    )


def dry_run(
    request: DryRunRequest,
    asked: QueuedRequest,
    answer: RequestDecision,
    snapshot: PoolSnapshot | None,
    params_of: Params,
    now: datetime,
) -> DryRun:
    """Return what would begin by the decision about a request."""
    event = answer.event
    result = DryRun(
        verb=request.verb,
        node=request.node,
        pool=asked.pool,
        accepted=isinstance(event, RequestAccepted | Scaled),
        note=event.note if isinstance(event, RequestAccepted) else "",
    )
    if snapshot is not None:
        result = _with_budget(result, snapshot, now)
    if isinstance(event, RequestRefused | ScaleRefused):
        return msgspec.structs.replace(result, refusal=event.refusal, reason=event.reason)
    if isinstance(event, Scaled):
        return msgspec.structs.replace(result, nodes=event.nodes)
    if snapshot is None or not request.node:
        desired = answer.record.desired if answer.record is not None else None
        return msgspec.structs.replace(result, nodes=desired)
    saga = event.saga if isinstance(event, RequestAccepted) else ""
    opened = answer.record.open.get(saga) if answer.record is not None else None
    if opened is None or answer.record is None:
        reason = "there is nothing to do"
        if answer.hold is not None or answer.entry is not None:
            reason = ""
        elif saga:
            reason = f"{saga} is under way already"
        return msgspec.structs.replace(result, reason=reason)
    return _with_saga(result, saga, opened, params_of(snapshot.fleet, answer.record, opened))


def ends_work(result: DryRun) -> bool:
    """Return whether the saga that would begin ends what runs on its node."""
    return any(each.step in ENDING_STEPS for each in result.steps)


def _with_budget(result: DryRun, snapshot: PoolSnapshot, now: datetime) -> DryRun:
    allowed = allowance(snapshot.record, snapshot.nodes, snapshot.others, now)
    node = snapshot.nodes.by_name.get(result.node)
    return msgspec.structs.replace(
        result,
        gates=tuple(_gates(result.verb, node, snapshot, allowed, now)) if node else (),
        unavailable=allowed.unavailable,
        unavailable_limit=allowed.level,
        disruptions=allowed.disruptions,
        disruptions_limit=-1 if allowed.rate is None else allowed.rate,
        desired=rack_units.units(snapshot.record, snapshot.record.desired),
        counted=rack_units.called(snapshot.record),
    )


def _with_saga(result: DryRun, saga: str, opened: OpenSaga, params: SagaParams) -> DryRun:
    definition = DEFINITIONS[opened.kind]
    launch = params.launch
    return msgspec.structs.replace(
        result,
        saga=saga,
        steps=_steps(definition, params),
        leaves=definition.left(params),
        new_node=opened.new_node,
        promotes=opened.promotes,
        order=params.order if opened.kind == "replace" else "",
        drain=params.drain,
        offering=DryRunOffering(
            provider=launch.provider,
            region=launch.region,
            zones=launch.zones,
            instance_type=launch.instance_type,
            gpu_count=launch.gpu_count,
        )
        if launch
        else None,
    )


def _steps(definition: Definition, params: SagaParams) -> tuple[DryRunStep, ...]:
    found: list[DryRunStep] = []
    final = False
    for step in definition.steps(params):
        final = final or step.irrevocable
        found.append(
            DryRunStep(
                step=step.name,
                deadline_seconds=step.deadline_seconds(params),
                undone=step.undo,
                final=final,
            )
        )
        final = final or step.pivot
    return tuple(found)


def _gates(
    verb: str, node: NodeRecord, snapshot: PoolSnapshot, allowed: Allowance, now: datetime
) -> Iterator[Gate]:
    """Each gate by itself, in the order of evaluation; the first that fails refuses."""
    record = snapshot.record
    yield Gate(name="in service", passed=node.state == "active", detail=f"it is {node.state}")
    saga = next((name for name in record.open if node.node in busy(_only(record, name))), "")
    yield Gate(name="no saga open", passed=not saga, detail=saga)
    kept = node_refusal(verb, node, record, now)
    yield Gate(name="hold and mode", passed=kept is None, detail=kept[1] if kept else "")
    already = takes_out_no_more(record, snapshot.nodes, node)
    taking = verb in ON_REQUEST and ON_REQUEST[verb].disrupts and not already
    out = f"{allowed.unavailable} out of service, {allowed.level} may be"
    yield Gate(name="budget", passed=not taking or allowed.unavailable < allowed.level, detail=out)
    health = snapshot.health.get(node.node)
    full = why_full(record, launches=False)
    stop = stop_gate.any_of(snapshot.stops, record.name, record.spec, now)
    proposed = Proposal("repair", record, now, node, health=health, full=full, stop=stop)
    for row in gate_table.rows_of("repair"):
        if row.name in ("stop", "freeze-window", "auto-replace-off", "breaker", "incident", "room"):
            block = row.block(proposed)
            why = block.text if block is not None else ""
            yield Gate(name=row.name, passed=not why, detail=why, automation_only=True)


def _only(record: PoolRecord, saga: str) -> PoolRecord:
    return msgspec.structs.replace(record, open={saga: record.open[saga]})
