"""Admission: what a new node must pass before it gets work, on a real server."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.enums import HardwareKind, SagaKind
from schemas.fault_signature import SILENCE
from schemas.hardware_denylist import HardwareRecord
from schemas.node_events import GpuIdentity, Verdict
from schemas.node_records import NodeRecord, RemediationAttempt
from schemas.pool_events import pool_codec
from schemas.saga_params import LaunchSpec, SagaParams
from schemas.settings import AdmissionSpec
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.notifier.alerts.alert_rules import alert_of
from services.pool_manager.planner.admission.admission_refusals import zones
from services.pool_manager.planner.admission.denied_hardware import (
    condemned,
    dead_on_arrival,
    is_of_its_kind,
    refused,
)
from services.pool_manager.planner.admission.denied_hardware import key as hardware_key
from services.pool_manager.service import build
from services.saga.saga_state import SagaState, StepState
from tests.pool_manager.fleet import ask, events, peers, pools, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers
from tests.support.saga_states import saga_state

NOW = datetime(2026, 5, 5, tzinfo=UTC)
SUBJECT_SAFE = re.compile(r"[a-z]+\.[A-Za-z0-9_=-]+\Z")
__all__ = ["peers"]

TESTED = AdmissionSpec(diagnostic="dcgm-2")


async def test_new_node_is_cordoned_until_its_diagnostic_passes(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The node is cordoned in the workload system, tested, then uncordoned and in service."""
    pool = settings(min_nodes=1, admission=TESTED)
    async with Running(server.url, "pool-manager", build, pool):
        await eventually(settled(bus, 1))

    assert ["provision", "bootstrap", "reserve", "check", "open"] == [
        step for step, _ in peers.calls
    ]


async def test_node_that_fails_its_diagnostic_is_terminated(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The reason is published, the instance terminated, and another one launched."""
    peers.fail["check"] = "the diagnostic failed: dcgm: GPU 3: memory"
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1, admission=TESTED)):
        [failed, *_] = await eventually(lambda: events(bus, "saga-failed"))
        peers.fail.clear()
        names = await eventually(settled(bus, 1))

    assert ("check", "the diagnostic failed: dcgm: GPU 3: memory") == (
        failed["step"],
        failed["reason"],
    )
    assert set(names) == peers.instances


# --- denied hardware ------------------------------------------------------------------------------


async def listed(bus: NatsBus) -> list[HardwareRecord]:
    """The denylist, as the query returns it."""
    reply = await bus.request(subjects.query("hardware"), b"", timeout_seconds=30)
    return msgspec.json.decode(reply.data, type=list[HardwareRecord])


async def idle(bus: NatsBus) -> bool:
    """Return whether no saga is open."""
    return not any(pool.open_sagas for pool in await pools(bus))


async def break_gpu(peers: Peers, node: str) -> None:
    """Publish an unhealthy verdict about GPU 3, as the health-monitor would."""
    await peers.publish(
        Verdict(
            id=f"verdict-gpu-{node}",
            time=datetime.now(UTC),
            pool="training",
            node=node,
            status="unhealthy",
            action="replace",
            reason="XID 79: the GPU fell off the bus",
            gpu_index=3,
            fault=f"fault-{node}",
            kind="xid",
            code=79,
        )
    )


async def test_gpu_of_a_replaced_node_is_denied_and_refused_again(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The provider sells the same GPU again: it is refused, and another is launched elsewhere."""
    pool = settings(min_nodes=1, zones=("a", "b"))
    async with Running(server.url, "pool-manager", build, pool):
        [old] = await eventually(settled(bus, 1))
        peers.same_hardware = old
        await break_gpu(peers, old)
        [refused, *_] = await eventually(lambda: events(bus, "node-refused"))
        peers.same_hardware = ""
        [new] = await eventually(settled(bus, 1))
        [gpu] = await listed(bus)

    assert ("gpu", f"GPU-{old}-3", old) == (gpu.kind, gpu.value, gpu.node)
    assert ("register", "a", 1, 3) == (
        refused["step"],
        refused["zone"],
        refused["attempt"],
        refused["attempts"],
    )
    assert f"gpu GPU-{old}-3 is known to be bad" in refused["reason"]
    assert {new} == peers.instances
    assert ["a", "a", "b"] == peers.zones


async def test_repeated_refusals_stop_launches_until_an_operator_scales(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The event names at the limit the remedy, and nothing launches until an operator scales."""
    pool = settings(min_nodes=1, admission=AdmissionSpec(attempts=2))
    async with Running(server.url, "pool-manager", build, pool):
        [old] = await eventually(settled(bus, 1))
        peers.same_hardware = old
        await break_gpu(peers, old)

        async def twice() -> list[dict[str, Any]] | None:
            found = await events(bus, "node-refused")
            return found if len(found) == 2 else None

        first, second = await eventually(twice)
        await eventually(lambda: idle(bus))
        launched = len(peers.zones)
        peers.same_hardware = ""
        await ask(bus, "scale", nodes=1)
        await eventually(settled(bus, 1))
        alert = alert_of(pool_codec.decode(msgspec.json.encode(second)))  # type: ignore[arg-type]

    assert ("", True) == (first["remedy"], "navarch scale training 1" in second["remedy"])
    assert (3, 4) == (launched, len(peers.zones))
    assert alert is not None
    assert ("critical", "admission/training") == (alert.severity, alert.key)
    assert alert.title.endswith(": not admitted")
    assert alert.text.startswith("Attempt 2 of 2: ")


async def test_operators_deny_and_forget_hardware(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Denied hardware is refused, forgotten hardware admitted, unknown hardware reported."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        await eventually(settled(bus, 1))
        gpu = {"kind": "gpu", "value": "GPU-gone-0"}
        added = await order(bus, "hardware-add", {**gpu, "reason": "burns"})
        peers.same_hardware = "gone"
        await ask(bus, "scale", nodes=2)
        [refused, *_] = await eventually(lambda: events(bus, "node-refused"))
        await order(bus, "hardware-forget", gpu)
        await ask(bus, "scale", nodes=2)
        await eventually(settled(bus, 2))
        again = await order(bus, "hardware-forget", gpu)

    assert '"by":"ada"' in added
    assert "burns" in refused["reason"]
    assert "see navarch hardware list" in again


async def order(bus: NatsBus, name: str, asked: dict[str, str]) -> str:
    """Give the pool-manager an order and return the reply as text."""
    subject = subjects.order(name, "ada")
    reply = await bus.request(subject, msgspec.json.encode(asked), timeout_seconds=30)
    return reply.data.decode()


# --- decisions ------------------------------------------------------------------------------------

GPUS = tuple(GpuIdentity(index=i, uuid=f"GPU-{i}", serial=f"165{i}") for i in range(2))
BROKEN = NodeRecord(
    pool="training",
    node="n1",
    gpus=GPUS,
    host="rack 7/host 3",
    health_gpu=1,
    launch=LaunchSpec(fleet="f", provider="metal", instance_type="t"),
)
TRIED = msgspec.structs.replace(
    BROKEN,
    attempts=(RemediationAttempt(saga="r", kind="reboot", fault_signature="xid-48", at=NOW),),
)
GPU_OF_BROKEN = [("gpu", "GPU-1"), ("serial", "1651")]
CONDEMNED = msgspec.structs.replace(
    BROKEN,
    health="unhealthy",
    health_action="replace",
    health_kind="xid",
    health_code=79,
    health_fault="f1",
    health_reason="XID 79",
)
"""A verdict calls for its replacement."""
NO_HELP = msgspec.structs.replace(
    CONDEMNED, health_action="reboot", health_code=48, attempts=TRIED.attempts
)


@pytest.mark.parametrize(
    ("kind", "params", "node", "expected"),
    [
        ("replace", {}, BROKEN, [("gpu", "GPU-1"), ("serial", "1651")]),
        # The verdict names no GPU: the host is denied.
        (
            "replace",
            {},
            msgspec.structs.replace(BROKEN, health_gpu=-1),
            [("host", "metal/rack 7/host 3")],
        ),
        # A lost node, a verdict without hardware: nothing.
        ("replace", {"fault": ""}, BROKEN, []),
        ("replace", {"action": "none"}, BROKEN, []),
        ("replace", {"action": "reboot"}, BROKEN, []),
        # Remembered where resets and reboots of this fault came before.
        ("replace", {"action": "reboot", "fault_signature": "xid-48"}, TRIED, GPU_OF_BROKEN),
        ("replace", {"action": "reboot", "fault_signature": "xid-95"}, TRIED, []),
        ("replace", {"action": "none", "fault_signature": "xid-48"}, TRIED, []),
        # Removed for another reason, while its verdict calls for a replacement.
        ("scale-down", {"fault": "", "action": "none"}, CONDEMNED, GPU_OF_BROKEN),
        ("replace", {"fault": "", "by": "alice"}, CONDEMNED, GPU_OF_BROKEN),
        ("scale-down", {"fault": ""}, NO_HELP, GPU_OF_BROKEN),
        ("scale-down", {"fault": ""}, BROKEN, []),
        ("replace", {}, None, []),
    ],
)
def test_hardware_denied_after_a_replacement(
    kind: SagaKind,
    params: dict[str, Any],
    node: NodeRecord | None,
    expected: list[tuple[str, str]],
) -> None:
    """The GPU that the verdict names, else the host, if the verdict is about hardware."""
    given = {"action": "replace", "fault": "f1", "reason": "XID 79", **params}
    found = condemned(about(kind, **given), node, NOW)

    assert expected == [(each.kind, each.value) for each in found.values()]
    assert all(SUBJECT_SAFE.match(key) for key in found)


def about(kind: SagaKind = "scale-down", **params: Any) -> SagaState:
    """Return a saga about node n1."""
    return saga_state(
        saga="s",
        kind=kind,
        params=SagaParams(pool="training", node="n1", **params),
        started_at=NOW,
        sequence=1,
    )


def test_in_a_wave_only_what_is_replaced_for_its_fault_is_denied() -> None:
    """A bad driver names every GPU; a surplus node's word is not enough then."""
    assert condemned(about(), CONDEMNED, NOW)
    assert condemned(about(), CONDEMNED, NOW, in_incident=True) == {}
    replaced = about("replace", action="replace", fault="f1", reason="XID 79")
    assert condemned(replaced, CONDEMNED, NOW, in_incident=True)


@pytest.mark.parametrize(
    ("changes", "in_incident", "count"),
    [
        ({}, False, 2),
        ({}, True, 0),
        ({"health_gpu": -1}, False, 0),
        ({"health": "healthy"}, False, 0),
        ({"admitted_at": NOW}, False, 0),
    ],
)
def test_dead_on_arrival_is_denied_where_a_gpu_is_to_blame(
    changes: dict[str, Any], in_incident: bool, count: int
) -> None:
    """The image may be to blame else, and every host of the cloud would be denied."""
    node = msgspec.structs.replace(CONDEMNED, **changes)
    found = dead_on_arrival(about("scale-up"), node, NOW, in_incident=in_incident)
    assert len(found) == count


LOST = msgspec.structs.replace(
    BROKEN, lost=True, lost_at=NOW - timedelta(minutes=6), provider_state="present"
)
SHORTLY = NOW - timedelta(minutes=1)


@pytest.mark.parametrize(
    ("kind", "changes", "params", "in_incident", "count"),
    [
        ("replace", {"lost_at": SHORTLY}, {"fault_signature": SILENCE}, False, 1),
        ("scale-down", {}, {}, False, 1),
        ("scale-down", {"lost_at": SHORTLY}, {}, False, 0),
        ("replace", {}, {"fault_signature": SILENCE}, True, 0),
        ("replace", {"provider_state": "gone"}, {}, False, 0),
        ("replace", {"provider_state": ""}, {"fault_signature": SILENCE}, False, 0),
        ("replace", {"provider_state": "disconnected"}, {}, False, 0),
    ],
)
def test_a_node_lost_for_good_is_denied_for_a_week(
    kind: SagaKind, changes: dict[str, Any], params: dict[str, Any], in_incident: bool, count: int
) -> None:
    """One of its GPUs, where its provider still had it and not all are silent."""
    node = msgspec.structs.replace(LOST, **changes)
    found = condemned(about(kind, **params), node, NOW, in_incident=in_incident).values()
    assert [("serial", "1650"), ("serial", "1651")][:count] == [(e.kind, e.value) for e in found]
    assert {each.until for each in found} <= {NOW + timedelta(days=7)}


@pytest.mark.parametrize(
    ("others_serve", "in_incident", "error", "count"),
    [
        (True, False, "not-admitted", 1),
        (False, False, "not-admitted", 0),
        (True, True, "not-admitted", 0),
        (True, False, "denied-hardware", 0),
    ],
)
def test_dead_on_arrival_is_denied_for_a_day_where_others_of_its_kind_serve(
    others_serve: bool, in_incident: bool, error: str, count: int
) -> None:
    """Hardware that is known already is not remembered again: its time would begin again."""
    admit = StepState(status="failed", error=error)
    saga = msgspec.structs.replace(about("scale-up"), failed_step="admit", steps={"admit": admit})
    node = msgspec.structs.replace(BROKEN, health_gpu=-1)
    found = dead_on_arrival(saga, node, NOW, in_incident=in_incident, others_serve=others_serve)
    assert len(found) == count
    assert {each.until for each in found.values()} <= {NOW + timedelta(days=1)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"health": "degraded"}, False),
        ({"lost": True}, False),
        ({"driver_version": "580.1"}, False),
        ({"gpus": (GpuIdentity(index=0, uuid="GPU-9", name="H200"),)}, False),
        ({"state": "registered"}, False),
    ],
)
def test_a_healthy_node_of_the_same_kind_speaks_for_the_image(
    changes: dict[str, Any], expected: bool
) -> None:
    """The nodes have the same model of GPUs and the same driver."""
    serving = msgspec.structs.replace(BROKEN, node="n2", state="active", health="healthy")
    assert expected == is_of_its_kind(msgspec.structs.replace(serving, **changes), BROKEN)


@pytest.mark.parametrize(
    ("bad", "refused_for"),
    [
        (("gpu", "GPU-1"), "gpu GPU-1"),
        (("serial", "1650"), "serial 1650"),
        (("host", "metal/rack 7/host 3"), "host metal/rack 7/host 3"),
        (("gpu", "GPU-9"), ""),
        (("host", "cloud/rack 7/host 3"), ""),
    ],
)
def test_node_is_recognised_by_any_of_its_hardware(
    bad: tuple[HardwareKind, str], refused_for: str
) -> None:
    """UUID, serial or host is enough; the reason says how to admit the node all the same."""
    record = HardwareRecord(kind=bad[0], value=bad[1], reason="burns", since=NOW)
    reason = refused(BROKEN, {hardware_key(*bad): record})

    assert bool(refused_for) == bool(reason)
    assert reason.startswith(refused_for)
    assert not reason or reason.endswith(f"navarch hardware forget {refused_for}")


def test_zones_with_denied_hardware_come_last() -> None:
    """The others keep their order; if all have denied hardware, all keep it."""
    assert ("b", "c", "a") == zones(("a", "b", "c"), {"a": NOW})
    assert ("a", "b") == zones(("a", "b"), {"a": NOW, "b": NOW})
