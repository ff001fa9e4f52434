"""Examples of types that no run produces: each field has a value other than its default."""

from typing import Any, Final

import msgspec
from msgspec import inspect

from schemas.duration import decode_hook
from schemas.messages import Message, encode

EVERYWHERE: Final[dict[str, Any]] = {
    "action": "replace",
    "address": "10.0.3.17",
    "agent_version": "0.1.0",
    "boot_id": "5f1c9d1e-8a53-4b39-9d55-0f6d2a7a51c4",
    "bytes": 28,
    "by": "ops@example.com",
    "cause": "fault-training-3-1841",
    "cluster": "a",
    "code": 79,
    "data": '{"nodes": "five", "by": "me"}',
    "detail": "8 of 8 GPUs answer",
    "dollars_per_hour": 23.92,
    "driver_version": "550.54.15",
    "duration_seconds": 412.7,
    "durable": "pool-requests",
    "error": "CAPACITY",
    "fault": "fault-training-3-1841",
    "fleet": "default",
    "gpu_count": 8,
    "gpu_index": 3,
    "gpu_serial": "1653022034567",
    "job": "slurm-1234",
    "gpu_uuid": "GPU-6a1b7c1e-2f0d-4a52-9c1f-7a55a1d3f0b2",
    "holder": "pool-manager-4711-a1b2c3",
    "hostname": "ip-10-0-3-17",
    "id": "fault-training-3-1841",
    "index": 3,
    "instance": "training-3",
    "instance_type": "gpu_8x_h100_sxm5",
    "key": "",
    "kind": "replace",
    "limit": 2,
    "message": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "name": "memory",
    "new_node": "training-7",
    "next": "training.training-3",
    "node": "training-3",
    "nodes": 5,
    "old_node": "training-3",
    "open_sagas": ["replace-training-3-0"],
    "pci": "0000:3b:00",
    "policy": "9f2c4e81d0aa",
    "pool": "training",
    "provider": "lambda",
    "rack": "hall-2-rack-17",
    "provider_id": "0920582c7ff041399e34823a0be62549",
    "reason": "XID 79: GPU has fallen off the bus",
    "refusal": "above-maximum",
    "region": "us-west-1",
    "remedy": "uncordon training-3 at the workload system by hand, then purge the saga's log",
    "request": "scale-0017",
    "retry_seconds": 30.0,
    "rule": "fatal-xid",
    "saga": "replace-training-3-0",
    "sequence": 1841,
    "serial": "1653022034567",
    "source": "kmsg",
    "ssh_user": "ubuntu",
    "status": "unhealthy",
    "step": "drain",
    "stream": "REQUESTS",
    "subject": "navarch.v1.pool.training.request.scale",
    "system": "DCGM_HEALTH_WATCH_PCIE",
    "token": "navarch-default-training-7",
    "trace": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "uuid": "GPU-6a1b7c1e-2f0d-4a52-9c1f-7a55a1d3f0b2",
    "verb": "drain",
    "previous": "healthy",
    "zone": "us-west-1a",
}
"""Field -> value, whatever the type."""

PARTICULAR: Final[dict[str, dict[str, Any]]] = {
    "BootChecked": {"ok": True},
    "ConsumerLag": {
        "status": "lagging",
        "messages": 12_400,
        "seconds": 74.2,
        "reason": "12400 messages wait (10000 may), the oldest for 74 s (60 may pass)",
    },
    "UnknownError": {
        "provider": "lambda",
        "code": "global/new-refusal",
        "call": "provision",
        "message": "HTTP 400: global/new-refusal The account is on hold.",
    },
    "DeadLetter": {
        "id": "dead-REQUESTS-pool-requests-17",
        "reason": "Expected `int`, got `str` - at `$.nodes`",
        "sequence": 17,
    },
    "Fault": {
        "kind": "xid",
        "cause": "",
        "metrics": {"xid_code": 79},
        "subcode": "0x1",
    },
    "RecordedFault": {"kind": "xid", "result": "unhealthy", "metrics": {"xid_code": 79}},
    "EvidenceBundle": {"outcome": "replaced", "timeline": [], "fault_signature": "xid-79"},
    "EvidenceCapture": {"record": None, "health": None, "instance": None},
    "FleetRecord": {"id": "default"},
    "GpuHealth": {"kind": "xid"},
    "GpuIdentity": {"name": "NVIDIA H100 80GB HBM3"},
    "GpuSample": {
        "utilization_percent": 97,
        "memory_used_bytes": 71_940_702_208,
        "memory_total_bytes": 85_520_809_984,
        "power_watts": 688.4,
        "temperature_celsius": 64,
        "memory_temperature_celsius": 78,
        "temperature_margin_celsius": 23,
        "sm_clock_mhz": 1980,
        "nvlinks_up": 18,
        "pcie_width": 16,
    },
    "HealthEvent": {"kind": "xid", "result": "unhealthy", "time": "2026-11-21T01:35:42.520Z"},
    "Incident": {
        "status": "opened",
        "kind": "xid",
        "incident": "xid-79-1795224942",
        "named": ["training-3", "training-5"],
        "reason": "5 nodes with XID 79 at once: one is replaced at a time",
    },
    "InstanceRecord": {
        "state": "running",
        "instance": "training-7",
        "error": "",
        "attempts": 1,
        "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0",
        "agent_key": "",
    },
    "LaunchSpec": {"labels": {"team": "research"}, "zones": ["us-west-1a"], "ssh_keys": ["ops"]},
    "NodeRecord": {"state": "active", "lost_at": None, "health": "unhealthy"},
    "NodeView": {
        "id": "training-3",
        "status": "active",
        "health": "unhealthy",
        "registered_at": "2026-11-20T09:12:03Z",
        "last_change": "2026-11-21T01:35:42Z",
        "gpus": [{"index": 3, "name": "NVIDIA H100 80GB HBM3"}],
    },
    "Page": {"items": [{"id": "training-3", "health": "unhealthy"}]},
    "OpenIncident": {"kind": "xid"},
    "PoolRecord": {
        "name": "training",
        "desired": 5,
        "serial": 7,
        "begun": {"1795224900": 2},
        "fleet_disruptions": {"1795224900": 2},
    },
    "BudgetClaim": {"begun": {"1795224900": 2}},
    "AdmissionSpec": {"diagnostic": "dcgm-2"},
    "PoolSpec": {
        "min_nodes": 2,
        "max_nodes": 10,
        "labels": {"team": "research"},
        "zones": ["us-west-1a"],
        "ssh_keys": ["ops"],
        "autoscaling": {"type": "reactive", "scale_up_at": 80, "scale_down_at": 20},
        "setup_commands": ["nvidia-smi -pm 1"],
        "ssh_private_key_path": "/etc/navarch/id_ed25519",
    },
    "PoolView": {
        "name": "training",
        "nodes": 5,
        "active": 4,
        "healthy": 4,
        "breaker": "closed",
        "min_nodes": 2,
        "max_nodes": 10,
    },
    "Query": {"after": "training.training-2", "limit": 100},
    "QueryError": {"error": "invalid-request", "reason": "Expected `int`, got `str`"},
    "Registered": {"cause": "", "instance": "training-7", "node": "training-7"},
    "RepairCount": {
        "fault_signature": "xid-79",
        "gpu_seconds": 3801.6,
        "seconds": 475.2,
        "buckets": [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    },
    "Repaired": {
        "cause": "replaced-replace-training-3-0",
        "outcome": "replaced",
        "fault_signature": "xid-79",
        "lost_gpu_hours": 1.056,
        "evidence": "training.training-3.replace-training-3-0",
    },
    "Block": {
        "gate": "hold",
        "text": "It is held until 2026-11-21T02:00:00Z by ada: bisecting.",
        "until": "2026-11-21T02:00:00Z",
        "remedy": "navarch release training-3",
    },
    "BlockedGroup": {"nodes": ["training-3"], "fault": "XID 79", "next": ""},
    "RequestRefused": {
        "refusal": "unknown-node",
        "reason": "pool training has no node training-99",
        "node": "training-99",
    },
    "SagaParams": {"order": "terminate_first"},
    "JoinRecord": {"agent_key": f"U{'A' * 55}", "digest": "5" * 64, "by": "alice"},
    "ScaleRefused": {"reason": "50 is above the pool's max_nodes 10"},
    "Scaled": {"previous": 3, "reason": "a request"},
    "StepSucceeded": {"outputs": {"provider": "lambda", "provider_id": "0920582c7ff04139"}},
    "Telemetry": {"cause": "", "sampled_at": None, "memory_used_bytes": 412_316_860_416},
    "Terminated": {"cause": "replace-training-3-0.terminate.succeeded"},
    "TimerDue": {"id": "timer-replace-training-3-0.drain"},
    "UndoStarted": {"step": "cordon"},
    "WindowSpec": {
        "name": "weekend",
        "kind": "freeze",
        "start": "0 22 * * 5",
        "timezone": "Europe/Berlin",
    },
    "Verdict": {"id": "verdict-training-3-fault-training-3-1841"},
}
"""Class -> field -> value."""

INPUTS: Final = {"pool": "training", "node": "training-3", "reason": "XID 79"}
MOMENT: Final = "2026-11-21T01:35:42.520Z"


def example(kind: type[Any]) -> bytes:
    """An example of a type, as it travels."""
    written = msgspec.json.encode(_struct(kind))
    value = msgspec.json.decode(written, type=kind, dec_hook=decode_hook)
    return msgspec.json.format(encode(value), indent=2) + b"\n"


def _struct(kind: type[Any]) -> dict[str, Any]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    particular = PARTICULAR.get(kind.__name__, {})
    made: dict[str, Any] = {}
    if issubclass(kind, Message):
        made["type"] = info.tag
        made["id"] = _id(kind)
    for field in info.fields:
        if field.name in particular:
            made[field.encode_name] = particular[field.name]
        elif field.encode_name not in made:
            made[field.encode_name] = _value(field.name, field.type)
    return made


def _id(kind: type[Any]) -> str:
    if "saga" in getattr(kind, "__struct_fields__", ()) and "Step" in kind.__name__:
        return f"replace-training-3-0.drain.{kind.__name__.removeprefix('Step').lower()}"
    return f"{kind.__name__.lower()}-training-3-1841"


def _value(name: str, kind: inspect.Type) -> Any:
    """A value for a field: by its name where the name means one thing, else by its type."""
    match kind:
        case inspect.LiteralType(values=values):
            known = EVERYWHERE.get(name)
            return known if known in values else values[-1]
        case inspect.UnionType(types=types):
            first = [each for each in types if not isinstance(each, inspect.NoneType)]
            return _value(name, first[0])
        case inspect.Metadata(type=inner):
            return _value(name, inner)
        case inspect.StructType(cls=cls):
            return _struct(cls)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return EVERYWHERE.get(name) or [_value(name, item)]
        case inspect.DictType(value_type=value):
            return _mapping(name, value)
        case inspect.DateTimeType():
            return MOMENT
        case inspect.BoolType():
            return False
        case inspect.IntType() | inspect.FloatType():
            known = EVERYWHERE.get(name)
            return known if isinstance(known, int | float) else 1
        case inspect.CustomType():
            return "5m"
        case _:
            return EVERYWHERE.get(name, name)


def _mapping(name: str, value: inspect.Type) -> dict[str, Any]:
    if name == "open":
        return {"replace-training-3-0": _value(name, value)}
    return dict(INPUTS) if name == "inputs" else {}
