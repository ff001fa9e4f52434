"""The poison table: every field of every message and record, at its extremes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from schemas import fleet_events, node_events, pool_events, subjects
from schemas.alert_records import OpenAlertRecord
from schemas.dead_letters import DeadLetter
from schemas.hardware_denylist import HardwareRecord
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.join_tokens import JoinRecord
from schemas.lease_records import (
    LaunchBatchRecord,
    LaunchClaimRecord,
    LeaseRecord,
    OpeningsRecord,
    RateLimitRecord,
    SetAsideRecord,
    SuspectRecord,
)
from schemas.messages import LimitedDecoder, Message, Record, decoder
from schemas.node_records import HeartbeatRecord, NodeRecord
from schemas.offering_records import BlockRecord, PlacementRecord, PricesRecord
from schemas.operations import REQUESTS
from schemas.operator_requests import ApplyRequest, RemoveRequest, Request
from schemas.pool_records import PoolRecord, RemovedPool
from schemas.present_answers import PresentAnswer
from schemas.saga_log_entries import STATUSES, WHOLE, SagaStarted, TimerDue
from schemas.topology import (
    ALERTS,
    ANSWERS,
    HARDWARE,
    HEALTH,
    HEARTBEATS,
    INSTANCES,
    LEASES,
    NODES,
    OFFERINGS,
    POOLS,
)
from tests.golden.catalogue import everything

DEPTH = 1
"""How deep nested structs are varied."""
RECORDS_SHARE = 5
"""Every fifth variation of a record: what reads them does not depend on the field."""
TIMES = (
    "0001-01-01T00:00:00Z",
    "1969-12-31T23:59:59Z",
    "1970-01-01T00:00:00Z",
    "2020-01-01T00:00:00Z",
    "2031-12-31T23:59:59+14:00",
    "2100-12-31T23:59:59Z",
    "9999-12-31T23:59:59-14:00",
    "2026-01-01T00:00:00",
    "now",
    5,
    None,
)
WHOLE_NUMBERS = (0, -1, 2**31, 2**63 - 1, -(2**63), 2**64, 10**300, 0.5, "1", None)
NUMBERS = (0.0, -1.0, 1e15, -1e15, 1e308, -1e308, 10**300, "1", None)
HOSTILE = "\x1b]0;owned\x07\x9b31m\u202egpj\u2066\u200b\r\nnavarch: all is well\x85$(touch x)"
"""What a terminal obeys, what hides or turns text around, and a forged line."""
TEXTS = ("", "x" * 513, "x" * 20_000, "\x00", HOSTILE, "ü€😀", "*.>", "../../x", 7, None)
LISTS: tuple[Any, ...] = ([], [None], [[]] * 1_000, {}, "x", None)
OBJECTS: tuple[Any, ...] = ({}, {"": None}, {"x" * 600: 10**300}, {"a": [[[{}]]]}, [], "x", None)
CODES = ("", "nonsense", 7, None)
FLAGS = (True, False, "true", 1, None)


def extremes(  # noqa: C901 - one case a type
    kind: inspect.Type, value: Any, depth: int = DEPTH
) -> Iterator[Any]:
    """Values for a field of this type; `value` is an ordinary one."""
    match kind:
        case inspect.DateTimeType():
            yield from TIMES
        case inspect.BoolType():
            yield from FLAGS
        case inspect.IntType():
            yield from WHOLE_NUMBERS
        case inspect.FloatType() | inspect.CustomType():
            yield from NUMBERS
        case inspect.LiteralType():
            yield from (*kind.values, *CODES)
        case inspect.StrType():
            yield from TEXTS
        case inspect.StructType():
            yield from ({}, [], "x", None)
            if depth and isinstance(value, dict):
                yield from variations(kind, value, depth - 1)
        case inspect.UnionType():
            for member in kind.types:
                yield from extremes(member, value, depth)
        case inspect.VarTupleType() | inspect.ListType():
            yield from LISTS
            first = value[0] if isinstance(value, list) and value else None
            yield from ([each] for each in extremes(kind.item_type, first, depth - 1) if depth)
        case _:
            yield from OBJECTS


def variations(kind: inspect.StructType, plain: dict[str, Any], depth: int = DEPTH) -> Any:
    """Yield the struct with one field at an extreme, and with one field missing."""
    for field in kind.fields:
        for value in extremes(field.type, plain.get(field.encode_name), depth):
            yield plain | {field.encode_name: value}
        yield {key: each for key, each in plain.items() if key != field.encode_name}


@dataclass(frozen=True, slots=True)
class Poison:
    """One message, and where it is published."""

    subject: str
    data: bytes


def poison(pool: str, node: str) -> Iterator[Poison]:
    """Yield every message about one pool and one of its nodes."""
    for golden in everything():
        plain = json.loads(golden.path.read_bytes()) if golden.path.exists() else {}
        subject = _subject(golden.kind, golden.name, pool, node)
        if not subject or not isinstance(plain, dict):
            continue
        about = {"pool": pool, "node": node, "saga": SAGA}
        plain |= {key: each for key, each in about.items() if key in plain}
        if golden.kind is SagaStarted:
            plain |= {"kind": "drain", "params": {"pool": pool, "node": "stranger"}}
        kind = inspect.type_info(golden.kind)
        assert isinstance(kind, inspect.StructType)
        depth = 0 if golden.kind is SagaStarted else DEPTH  # what can be read is begun
        found = variations(kind, plain, depth)
        if issubclass(golden.kind, Record):
            found = list(found)[::RECORDS_SHARE]
        for number, each in enumerate(found):
            if each.get("saga") == SAGA:
                each["saga"] = SAGA.replace("NUMBER", str(number))
            if issubclass(golden.kind, Message) and each.get("id") == plain.get("id"):
                each["id"] = f"poison-{golden.kind.__name__}-{number}"
            data = _encode(each)
            if not (golden.kind in _MAKES_POOLS or issubclass(golden.kind, Record)) or not (
                _is_readable(golden.kind, data)
            ):
                yield Poison(subject.replace("NUMBER", str(number)), data)


_MAKES_POOLS = (ApplyRequest, RemoveRequest)
"""Requests that make and remove pools if they can be read."""


def _is_readable(kind: type[Record | Request], data: bytes) -> bool:
    """A record that can be read was written by a service of ours, and is no poison."""
    try:
        (decoder(kind) if issubclass(kind, Record) else LimitedDecoder(kind)).decode(data)
    except msgspec.DecodeError:
        return False
    return True


SAGA = "drain-stranger-NUMBER"
_NODE_KEYS: dict[type[Any], str] = {
    NodeRecord: NODES.name,
    HealthRecord: HEALTH.name,
    InstanceRecord: INSTANCES.name,
    HeartbeatRecord: HEARTBEATS.name,
}
_OTHER_KEYS: dict[type[Any], str] = {
    PoolRecord: f"{POOLS.name}.pool.poisonNUMBER",
    BlockRecord: f"{OFFERINGS.name}.blocked.poisonNUMBER",
    PricesRecord: f"{OFFERINGS.name}.prices.poisonNUMBER",
    PlacementRecord: f"{OFFERINGS.name}.placement.poisonNUMBER",
    RemovedPool: f"{POOLS.name}.removed.poisonNUMBER",
    OpenAlertRecord: f"{ALERTS.name}.poisonNUMBER",
    PresentAnswer: f"{ANSWERS.name}.pool.poisonNUMBER",
    HardwareRecord: f"{HARDWARE.name}.gpu.poisonNUMBER",
    LeaseRecord: f"{LEASES.name}.poisonNUMBER",
    OpeningsRecord: f"{LEASES.name}.pool-manager.openings.poisonNUMBER",
    RateLimitRecord: f"{LEASES.name}.provisioner.pace-poisonNUMBER",
    LaunchClaimRecord: f"{LEASES.name}.provisioner.claim-poisonNUMBER",
    LaunchBatchRecord: f"{LEASES.name}.provisioner.batch-poisonNUMBER",
    JoinRecord: f"{LEASES.name}.provisioner.join.poison.poisonNUMBER",
    SuspectRecord: f"{LEASES.name}.notifier.suspect.notifier-alerts.9000000NUMBER",
    SetAsideRecord: f"{LEASES.name}.notifier.set-aside.notifier-alerts.9000000NUMBER",
}
NOT_PUBLISHED: dict[str, str] = {
    "FleetBudgetRecord": "one key, which every pool needs",
    "FleetRecord": "one key, which every pool needs",
    "SpendRecord": "one key: tests/provisioner/test_offering_allocator.py",
    "InterruptionsRecord": "one key: tests/provisioner/test_interruptions.py",
    "RemovalGrantsRecord": "a lease of each pool: tests/provisioner/test_termination_orders.py",
    "PluginSwitchRecord": "one key for each plugin: tests/runtime/test_plugin_host.py",
    "StopsRecord": "one key in two buckets: tests/pool_manager/test_stops_on_the_bus.py",
    "RepairTotals": "one key: tests/metrics/test_repairs.py",
    "EvidenceBundle": "an object: tests/metrics/test_repairs.py",
    "EvidenceCapture": "an object: tests/metrics/test_repairs.py",
}
"""Types that the table lacks, and why. Step data and answers are no messages of their own."""


def stored_types() -> Iterator[tuple[str, bool]]:
    """Each message, request and record with a key of its own, and whether the table has it."""
    golden = [each for each in everything() if issubclass(each.kind, Message | Record | Request)]
    nested = {found for each in golden for found in _nested(inspect.type_info(each.kind))}
    for each in golden:
        if each.kind not in nested:
            yield each.kind.__name__, bool(_subject(each.kind, each.name, "pool", "node"))


def _nested(kind: inspect.Type) -> Iterator[type[Any]]:
    """The structs inside a type."""
    match kind:
        case inspect.StructType():
            for field in kind.fields:
                if isinstance(field.type, inspect.StructType):
                    yield field.type.cls
                yield from _nested(field.type)
        case inspect.UnionType():
            for member in kind.types:
                if isinstance(member, inspect.StructType):
                    yield member.cls
                yield from _nested(member)
        case inspect.VarTupleType() | inspect.ListType():
            yield from _nested(inspect.UnionType((kind.item_type,)))
        case inspect.DictType():
            yield from _nested(inspect.UnionType((kind.value_type,)))


def _subject(kind: type[Any], name: str, pool: str, node: str) -> str:
    """Where messages of this type are published; empty: nowhere."""
    found = ""
    if issubclass(kind, node_events.Telemetry):
        found = subjects.telemetry(pool, node)
    elif kind in node_events.FACTS:
        found = subjects.node_event(pool, node, node_events.FACTS[kind])
    elif kind in pool_events.FACTS:
        found = subjects.pool_event(pool, pool_events.FACTS[kind])
    elif kind in fleet_events.FACTS:
        found = subjects.fleet_event(fleet_events.FACTS[kind])
    elif kind in STATUSES:
        step = WHOLE if "step" not in kind.__struct_fields__ else "drain"
        found = subjects.saga_entry("drain-stranger-0", step, STATUSES[kind]).replace(
            "-0.", "-NUMBER."
        )
    elif kind is TimerDue:
        found = subjects.timer_due("pool-manager", "poison")
    elif kind is DeadLetter:
        found = subjects.dead("EVENTS", "health-events")
    elif name in REQUESTS:
        found = subjects.pool_request(pool, name)
    elif kind in _NODE_KEYS:
        found = f"$KV.{_NODE_KEYS[kind]}.{pool}.poison-NUMBER"
    elif kind in _OTHER_KEYS:
        found = f"$KV.{_OTHER_KEYS[kind]}"
    return found


def _encode(value: Any) -> bytes:
    """JSON, with numbers of any size."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
