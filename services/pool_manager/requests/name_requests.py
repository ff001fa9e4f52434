"""`resume` and `suspend`: which of the workload system's names are to have a node. Pure."""

from datetime import datetime

from schemas.operator_requests import NamesRequest
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.sizing import workload_names
from services.pool_manager.requests.request_replies import (
    QueuedRequest,
    RefusedError,
    RequestDecision,
    accepted,
)
from services.primitives.host_list import expand_hosts, some_of


def request_names(
    asked: QueuedRequest, payload: NamesRequest, snapshot: PoolSnapshot, now: datetime
) -> RequestDecision:
    """Answer a request; repeating it changes nothing."""
    record, spec, want = snapshot.record, snapshot.record.spec, asked.verb == "resume"
    if not spec.workload_names:
        raise RefusedError(
            "wrong-state",
            f"pool {record.name} has no workload_names; set them to the names that its nodes have "
            "in the workload system, as training-[001-064]",
        )
    if want and record.removing:
        raise RefusedError("wrong-state", f"pool {record.name} is being removed")
    known = set(expand_hosts(spec.workload_names))
    if not want:
        known |= record.workload_names.keys()  # the setting may have been shortened since
    if strange := set(payload.names) - known:
        raise RefusedError(
            "unknown-node",
            f"{some_of(sorted(strange))}: not among the workload_names of pool {record.name} "
            f"({spec.workload_names})",
        )
    changed = workload_names.request_names(
        record, payload.names, asked.sequence, asked.time, want=want
    )
    if want and changed.desired > max(spec.max_nodes, record.desired):
        raise RefusedError(
            "above-maximum",
            f"{changed.desired} nodes asked for, max_nodes of {record.name} is {spec.max_nodes}; "
            "raise max_nodes to the number of workload_names",
        )
    before, after = set(workload_names.wanted(record)), set(workload_names.wanted(changed))
    note = f"{len(before ^ after)} of {len(set(payload.names))} names changed"
    return RequestDecision(event=accepted(asked, payload, now, note=note), record=changed)
