"""The desired size of a pool as operators ask for it, or why it is refused. Pure."""

from datetime import datetime

import msgspec

from schemas.pool_records import PoolRecord
from services.pool_manager.planner.admission.admission_refusals import reset_refusals
from services.pool_manager.requests.request_replies import RefusedError
from services.settings.provider_choices import whole_racks


def resized(record: PoolRecord, nodes: int, now: datetime) -> PoolRecord:
    """The record with another desired size; RefusedError where it cannot have that."""
    spec = record.spec
    _require_resizable(record, "ask for nodes by name: navarch slurm resume NAMES")
    nodes = whole_racks(spec, nodes)
    if nodes > spec.max_nodes:
        raise RefusedError(
            "above-maximum",
            f"{nodes} nodes asked for, max_nodes of {record.name} is {spec.max_nodes}; "
            "ask for fewer or raise max_nodes",
        )
    if nodes < spec.min_nodes:
        raise RefusedError(
            "below-minimum",
            f"{nodes} nodes asked for, min_nodes of {record.name} is {spec.min_nodes}; "
            "ask for more or lower min_nodes",
        )
    return reset_refusals(msgspec.structs.replace(record, desired=nodes, scaled_at=now, gangs=()))


def smaller(record: PoolRecord, now: datetime) -> PoolRecord:
    """The record that wants one node fewer, because an operator has one terminated."""
    _require_resizable(record, "give the name back: navarch slurm suspend NAME")
    if record.spec.rack.nodes > 1:
        raise RefusedError(
            "wrong-state",
            f"pool {record.name} is sized by whole racks of {record.spec.rack.nodes} nodes: have "
            f"another launched in its place (navarch replace NODE), or take a rack away "
            f"(navarch scale {record.name} NODES)",
        )
    if record.desired <= record.spec.min_nodes:
        raise RefusedError(
            "below-minimum",
            f"the desired size of {record.name} is {record.desired}, and its min_nodes is "
            f"{record.spec.min_nodes}: lower min_nodes, or have another launched in its place: "
            "navarch replace NODE",
        )
    return resized(record, record.desired - 1, now)


def _require_resizable(record: PoolRecord, instead: str) -> None:
    """RefusedError where operators do not set the size; `instead`: what they do."""
    if record.removing:
        raise RefusedError("wrong-state", f"pool {record.name} is being removed")
    if record.spec.nodes == "enrolled":
        raise RefusedError(
            "wrong-state",
            f"machines join and leave pool {record.name}, which has no size: navarch join, "
            "navarch leave NODE",
        )
    if record.spec.nodes == "adopted":
        raise RefusedError(
            "wrong-state",
            f"others make the nodes of pool {record.name}, and keep their number: change it there "
            "(auto-scaling group, NodePool, Slurm's partition)",
        )
    if names := record.spec.workload_names:
        raise RefusedError(
            "wrong-state",
            f"pool {record.name} is sized by its workload_names ({names}); {instead}",
        )
