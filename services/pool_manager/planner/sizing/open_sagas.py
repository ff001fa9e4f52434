"""Opening a saga in a pool's record: its id, the name of the node it brings, and why. Pure."""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import msgspec

from schemas.enums import SagaKind
from schemas.names import node_serial
from schemas.node_records import NodeRecord
from schemas.pool_records import (
    ANNOUNCED_UNITS_MAX,
    LAUNCH_UNITS,
    LAUNCH_UNITS_MAX,
    NAMED_LAUNCH_UNITS,
    OPEN_UNITS_MAX,
    REASON_CHARS,
    SAGA_UNITS,
    OpenSaga,
    PoolRecord,
)
from schemas.settings import PoolSpec
from services.pool_manager.planner import cloud_notices, rack_units
from services.pool_manager.planner.disruption_budget import for_no_fault
from services.pool_manager.planner.node_counts import is_down, is_gone
from services.pool_manager.planner.safety.fault_waves import named_signature
from services.pool_manager.planner.sizing.workload_names import name_of
from services.saga.definitions import DEFINITIONS


def node_name(fleet: str, pool: str, serial: int) -> str:
    """A new node's name: the pool, a number people can say, and four digits of the fleet's own.

    The digits keep a fleet that lost its bus, or another fleet in the same account, from naming the
    same instance.
    """
    digits = hashlib.sha256(f"{fleet}/{pool}/{serial}".encode()).hexdigest()[:4]
    return f"{pool}-{serial}-{digits}"


def highest_serial(pool: str, names: Iterable[str]) -> int:
    """The highest serial of a pool's node names."""
    return max((node_serial(pool, each) for each in names), default=0)


def without_name(record: PoolRecord, name: str) -> PoolRecord:
    """The record that gives no new node this name: it may have been rolled back since it did."""
    serial = max(record.serial, node_serial(record.name, name))
    return msgspec.structs.replace(record, serial=serial)


def begin(
    fleet: str,
    record: PoolRecord,
    kind: SagaKind,
    now: datetime,
    *,
    node: NodeRecord | None = None,
    spare: bool = False,
    promotes: str = "",
    workload_name: str = "",
    gang: tuple[str, int] = ("", 0),
    with_rack: bool = False,
) -> tuple[str, OpenSaga, PoolRecord]:
    """Make a saga's id and opening; a node that it brings takes the record's next serial.

    `spare`: what comes is for the reserve; `promotes`: the spare that goes into service;
    `workload_name`: what the workload system calls the new node, like the node that it replaces;
    `gang`: the launches with which it is made in one place or not at all, and how many they are;
    `with_rack`: the node leaves with its rack, of which the pool then launches another.
    """
    if kind == "replace" and node is not None:
        workload_name = name_of(node)
    # What degrades a node is no reason to take it out of service; its silence is.
    silent = node is not None and node.lost and node.health != "unhealthy"
    forced = lacks_room(node, record.spec, now)
    new_node = ""
    launches = record.spec.nodes == "launched" and not with_rack
    if DEFINITIONS[kind].brings_node and launches:
        serial = record.serial + 1
        record = msgspec.structs.replace(record, serial=serial)
        new_node = node_name(fleet, record.name, serial)
    opened = OpenSaga(
        kind=kind,
        node=node.node if node else "",
        new_node=new_node,
        spare=spare or (kind == "replace" and bool(promotes)) or _renews(kind, node),
        promotes=promotes,
        action=node.health_action if node else "none",
        fault=node.health_fault if node and not silent else "",
        fault_signature=named_signature(node) if node else "",
        gpus=_gpus(node) if node and kind == "reset-gpu" else (),
        boot_id=node.boot_id if node else "",
        interrupted=kind == "replace" and cloud_notices.is_interrupted(node),
        gone=is_gone(node),
        dead=is_gone(node) or is_down(node),
        workload_name=workload_name,
        gang=gang[0],
        gang_size=gang[1],
        rack=node.rack if node and rack_units.is_by_rack(record) else "",
        # Two machines cannot have one name.
        # Its work is dead, or cannot be asked to leave: it is given its time, and not waited for.
        drain="deadline" if silent and record.spec.drain == "wait" else "",
        order="terminate_first" if kind == "replace" and (workload_name or forced) else "",
        trace=node.health_trace if node else "",
        since=now,
    )
    if node is not None and node.cordoned and DEFINITIONS[kind].keeps_cordon:
        opened = msgspec.structs.replace(
            opened,
            was_cordoned=True,
            quarantined_at=node.quarantine.since if node.quarantine is not None else None,
            spare=opened.spare or node.spare,
        )
    if node is not None:
        opened = msgspec.structs.replace(opened, **cloud_notices.departure(node, record.spec, now))
        if kind != "replace":
            opened = _for_no_notice(opened)
    # No successor ends the alerts about a node that leaves with its rack: its termination does.
    name: SagaKind | Literal["rack"] = "rack" if with_rack else kind
    return saga_id(name, node, new_node), opened, record


def lacks_room(node: NodeRecord | None, spec: PoolSpec, now: datetime) -> bool:
    """Return whether a node makes room for its successor where a pool launches that first.

    It is out of service already, or leaves at leisure: its drain has its time.
    """
    if node is None or node.no_room_since is None:
        return False
    if not node.cordoned and node.health not in ("healthy", "degraded"):
        return False
    limit = float(spec.provision_first_for)
    first = spec.replace_order == "provision_first" and limit > 0
    return first and (now - node.no_room_since).total_seconds() >= limit


def _for_no_notice(opened: OpenSaga) -> OpenSaga:
    """The same, where a notice in force is not its reason: it outlasts the notice."""
    return msgspec.structs.replace(opened, notice="", sole_notice="")


def _renews(kind: SagaKind, node: NodeRecord | None) -> bool:
    """Whether it is a spare that leaves; what comes in its place is one too."""
    return node is not None and node.spare and DEFINITIONS[kind].removes_node


def _gpus(node: NodeRecord) -> tuple[str, ...]:
    """The GPUs that the node's verdict is about; none where it is about the node, or unknown."""
    affected = {node.health_gpu, *node.faulty_gpus} if node.health_gpu >= 0 else ()
    return tuple(gpu.uuid for gpu in node.gpus if gpu.index in affected and gpu.uuid)


def saga_id(kind: SagaKind | Literal["rack"], node: NodeRecord | None, new_node: str = "") -> str:
    """Derived from what the saga is about, so that a repeated cause cannot start two."""
    return f"{kind}-{node.node}-{node.sagas + 1}" if node else f"{kind}-{new_node}"


def open_for(
    fleet: str,
    record: PoolRecord,
    kind: SagaKind,
    now: datetime,
    node: NodeRecord,
    promotes: str = "",
) -> tuple[str, OpenSaga, PoolRecord]:
    """Open a saga that was requested about a node: it is for no notice, even if one is in force."""
    saga, opened, record = begin(fleet, record, kind, now, node=node, promotes=promotes)
    opened = _for_no_notice(opened)
    return saga, opened, with_open(record, saga, opened)


def numbered(before: PoolRecord, after: PoolRecord) -> PoolRecord:
    """The record after a change, with one more opening where the change opened sagas."""
    if after.open.keys() <= before.open.keys():
        return after
    return msgspec.structs.replace(after, openings=before.openings + 1)


def room_for_sagas(record: PoolRecord) -> int:
    """Return how many more sagas about its nodes a pool may begin without a request.

    Launches leave them room: a pool that grows still repairs its nodes.
    """
    return max(0, OPEN_UNITS_MAX - open_units(record)) // SAGA_UNITS


def another_fits(units: int) -> bool:
    """Return whether one more saga may begin without a request where the open ones take these."""
    return units + SAGA_UNITS <= OPEN_UNITS_MAX


def room_for_announced(record: PoolRecord) -> int:
    """Return how many units a pool may begin for notices and renewals, of nodes without a fault."""
    taken = sum(units_of(each) for each in record.open.values() if for_no_fault(each))
    return max(0, min(ANNOUNCED_UNITS_MAX - taken, OPEN_UNITS_MAX - open_units(record)))


def units_of_texts(reason: str, notice: str = "") -> int:
    """Return the units of a saga about a node, by the texts that its opening has."""
    return SAGA_UNITS + (len(reason) + len(notice)) // REASON_CHARS


def room_for_launches(record: PoolRecord) -> int:
    """Return how many more launches a pool may begin."""
    each = NAMED_LAUNCH_UNITS if record.spec.workload_names else LAUNCH_UNITS
    return max(0, LAUNCH_UNITS_MAX - open_units(record)) // each


def why_full(record: PoolRecord, *, launches: bool) -> str:
    """Return why no saga more, or no launch, may begin; empty: one may."""
    if not room_for_sagas(record):
        return f"{len(record.open)} sagas are open, as many as may be: others wait for their end"
    if launches and not room_for_launches(record):
        return f"{len(record.open)} sagas are open: more launches wait for the end of some"
    return ""


def open_units(record: PoolRecord) -> int:
    """Return the units of a pool's open sagas; it takes longer the more are open."""
    return sum(map(units_of, record.open.values()))


def units_of(opened: OpenSaga) -> int:
    """Return the units of an open saga."""
    if opened.kind != "scale-up":
        return units_of_texts(opened.reason, opened.notice)
    return NAMED_LAUNCH_UNITS if opened.workload_name else LAUNCH_UNITS


def with_open(record: PoolRecord, saga: str, opened: OpenSaga) -> PoolRecord:
    """The record with a saga that is open."""
    return msgspec.structs.replace(record, open={**record.open, saga: opened})
