"""No sequence of facts about one node makes the control plane act beyond its limits."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from schemas.node_events import (
    BootChecked,
    GpuIdentity,
    Lost,
    NodeEvent,
    ProviderNotice,
    Registered,
    Returned,
    Verdict,
)
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.settings import HealthSpec, PluginSettings, PoolSpec
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.disruption_budget import voluntary_rate
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.node_projection import apply_event
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.remediator_plugins import Remediators
from services.saga.definitions import DEFINITIONS

NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC: Final = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=99)
RATE: Final = 3
"""Replacements that the budget of a pool of three allows in an hour."""
GPU: Final = (GpuIdentity(index=0, uuid="GPU-1"),)

LIMITED_BY: Final = {
    "provider_notice": "two withdrawn notices an hour; then the budget",
    "verdict": "the budget and the breaker",
    "lost": "lost_after, the budget and the breaker",
    "returned": "ends a loss; begins nothing",
    "registered": "describes a node that the pool-manager has named; begins nothing",
    "workload_state": "what the workload system says of the node; begins nothing",
    "work_gangs": "begins with others what is to be begun anyway, twice the budget at most",
    "boot_checked": "admits or refuses a node that is launched; `admission.attempts`",
}
"""Facts that change a node's record, from which everything is decided, and what limits each."""


def types() -> dict[str, type[NodeEvent]]:
    """Return every event about nodes, by the last word of its type."""
    return {each.__struct_config__.tag.rpartition(".")[2]: each for each in _kinds(NodeEvent)}


def _kinds(kind: type[NodeEvent]) -> Iterator[type[NodeEvent]]:
    for each in kind.__subclasses__():
        if each.__struct_config__.tag:
            yield each
        yield from _kinds(each)


def node(name: str) -> NodeRecord:
    """Return a healthy node in service."""
    return NodeRecord(pool="a", node=name, state="active", health="healthy", admitted_at=NOW)


def example(kind: type[NodeEvent], at: datetime, n: int) -> NodeEvent:
    """One that changes a record if any of its type does."""
    given: dict[str, Any] = {"id": f"{n}", "time": at, "pool": "a", "node": "n1"}
    wanted: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in given:
            wanted[field.name] = {"ok": False, "status": "unhealthy", "action": "replace"}.get(
                field.name, f"x{n}"
            )
    try:
        return msgspec.convert({**given, **wanted}, kind, strict=False)
    except msgspec.ValidationError:
        return kind(**given, **wanted)


def test_every_fact_that_changes_a_node_has_a_limit() -> None:
    """Generated from the event types: a new one that changes records needs a line above."""
    changing = set()
    for name, kind in types().items():
        before = msgspec.structs.replace(node("n1"), lost=name == "returned")
        after = apply_event(before, example(kind, NOW, 1), NOW)
        if after != before:
            changing.add(name)
    assert set(LIMITED_BY) == changing


def flips(name: str, at: datetime, n: int) -> tuple[NodeEvent, NodeEvent]:
    """A fact that asks for something, and the one that takes it back."""
    about: dict[str, Any] = {"time": at, "pool": "a", "node": "n1"}
    boot: dict[str, Any] = {"boot_id": f"b{n}", "instance": "n1", "gpus": GPU}
    match name:
        case "provider_notice" | "provider_notice, new IDs":
            ident = "x" if name == "provider_notice" else f"x{n}"
            return (
                ProviderNotice(id=f"{n}", notice=ident, **about),
                ProviderNotice(id=f"{n}w", notice=ident, withdrawn=True, **about),
            )
        case "verdict":
            words: dict[str, Any] = {"reason": "r", "fault": f"f{n}", "kind": "xid", **about}
            return (
                Verdict(id=f"{n}", status="unhealthy", action="replace", **words),
                Verdict(id=f"{n}h", status="healthy", action="none", **words),
            )
        case "lost":
            return (
                Lost(id=f"{n}", **about),
                Returned(id=f"{n}r", **about),
            )
        case "registered":
            return (Registered(id=f"{n}", **boot, **about), Registered(id=f"{n}a", **boot, **about))
        case _:
            return (
                BootChecked(id=f"{n}", ok=False, checks=(), boot_id="b", **about),
                BootChecked(id=f"{n}o", ok=True, checks=(), boot_id="b", **about),
            )


@pytest.mark.parametrize(
    "name",
    [
        "provider_notice",
        "provider_notice, new IDs",
        "verdict",
        "lost",
        "registered",
        "boot_checked",
    ],
)
def test_alternating_facts_launch_within_the_limits(name: str) -> None:
    """A hundred times in 50 s; eleven launches in 25 s were made of notices."""
    spec = msgspec.structs.replace(
        SPEC, health=HealthSpec(remediation=PluginSettings(type="replace"))
    )
    record = PoolRecord(name="a", spec=spec, desired=3, serial=3)
    nodes = {each: node(each) for each in ("n1", "n2", "n3")}
    remediate = Remediators({}, None).of
    launches = 0
    for n in range(100):
        now = NOW + timedelta(seconds=n / 2)
        for event in flips(name, now, n):
            nodes["n1"] = apply_event(nodes["n1"], event, now) or nodes["n1"]
            planned = plan(
                PoolSnapshot(
                    fleet="f",
                    record=record,
                    nodes=Nodes(tuple(nodes.values())),
                    revision=n + 1,
                    remediator=remediate(record),
                ),
                now,
            )
            record = planned.record
            launches += sum(DEFINITIONS[each.kind].brings_node for each in planned.start.values())
        for saga in list(record.open):
            # What was taken back is unwound before the next fact.
            record = close(record, saga, failed=False, now=now)
            nodes["n1"] = msgspec.structs.replace(nodes["n1"], sagas=nodes["n1"].sagas + 1)
    assert launches <= RATE
    if name == "provider_notice":
        # What the cloud announces spends the budget of nodes without a fault, and no more of it.
        assert launches == voluntary_rate(spec.budget, record.desired)


def test_notice_is_believed_again_after_an_hour() -> None:
    """While its notice is not believed, a node is replaced as far as the budget allows."""
    found = node("n1")
    for n in range(3):
        for event in flips("provider_notice", NOW + timedelta(seconds=n), n):
            found = apply_event(found, event, NOW + timedelta(seconds=n)) or found
    again, _ = flips("provider_notice", NOW + timedelta(seconds=9), 9)
    found = apply_event(found, again, NOW + timedelta(seconds=9)) or found
    later = NOW + cloud_notices.WITHDRAWALS_WINDOW + timedelta(seconds=9)
    record = PoolRecord(name="a", spec=SPEC, desired=3)

    assert not cloud_notices.urgent(found, SPEC, NOW + timedelta(seconds=10))
    assert cloud_notices.urgent(found, SPEC, later)
    assert cloud_notices.next_moment(record, [found], NOW + timedelta(seconds=10)) is not None


def test_withdrawals_are_counted_by_the_server_s_time() -> None:
    """An agent that dates its events back or ahead is limited alike."""
    found = node("n1")
    for n in range(3):
        for event in flips("provider_notice, new IDs", NOW + timedelta(days=n - 9), n):
            found = apply_event(found, event, NOW) or found
    assert (NOW, NOW) == found.withdrawals
