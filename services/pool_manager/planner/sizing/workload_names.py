"""Pools that are sized by the names of their workload system: which are to have a node. Pure.

Slurm says `training-007` is to run, and later that it is not. The name goes to a node when it is
launched, and to the node that replaces it; two nodes never have it at once.
"""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord, WorkloadName
from schemas.saga_params import WORKLOAD_NAME
from services.pool_manager.planner.node_counts import Nodes


def name_of(node: NodeRecord) -> str:
    """The workload system's name of a node; empty: it gave it none."""
    return node.launch.labels.get(WORKLOAD_NAME, "") if node.launch else ""


def wanted(record: PoolRecord) -> list[str]:
    """The names that are to have a node."""
    if record.removing:
        return []
    return sorted(name for name, each in record.workload_names.items() if each.wanted)


def unserved(record: PoolRecord, nodes: Nodes) -> list[str]:
    """Wanted names that no node has, not even one that leaves."""
    taken = {name_of(each) for each in nodes}
    taken |= {each.workload_name for each in record.open.values()}
    return [name for name in wanted(record) if name not in taken]


def unwanted(record: PoolRecord, nodes: Nodes) -> list[NodeRecord]:
    """Nodes whose names are not wanted; nodes without a name stay unless the pool is removed."""
    names = set(wanted(record))
    return [
        each for each in nodes if name_of(each) not in names and (name_of(each) or record.removing)
    ]


def request_names(
    record: PoolRecord, names: Iterable[str], sequence: int, at: datetime, *, want: bool
) -> PoolRecord:
    """The record after a request; of each name, only what is newer than the last one counts."""
    changed = dict(record.workload_names)
    for name in names:
        last = changed.get(name)
        if last is None or last.sequence < sequence or last.at < at:
            changed[name] = WorkloadName(wanted=want, sequence=sequence, at=at)
    return _resized(record, changed)


def give_up(record: PoolRecord, name: str) -> PoolRecord:
    """The record after a launch that failed: the workload system requests the name again."""
    last = record.workload_names.get(name)
    if last is None or not last.wanted:
        return record
    dropped = msgspec.structs.replace(last, wanted=False)
    return _resized(record, {**record.workload_names, name: dropped})


def found_names(nodes: Iterable[NodeRecord], at: datetime) -> dict[str, WorkloadName]:
    """The names of existing nodes, for a record that was lost."""
    return {
        name: WorkloadName(wanted=True, at=at)
        for each in nodes
        if each.state != "terminated" and (name := name_of(each))
    }


def _resized(record: PoolRecord, names: dict[str, WorkloadName]) -> PoolRecord:
    record = msgspec.structs.replace(record, workload_names=names)
    return msgspec.structs.replace(record, desired=len(wanted(record)))
