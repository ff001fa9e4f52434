"""A drain waits for work in one of three modes, and a wait may end early."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.duration import Duration
from schemas.node_records import NodeRecord
from schemas.pool_events import RequestAccepted, RequestRefused
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_log_entries import (
    SagaStarted,
    StepExpired,
    StepOverdue,
    StepStarted,
    StepSucceeded,
)
from schemas.saga_params import SagaParams
from schemas.settings import PoolSpec
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.reconciler import saga_params
from services.pool_manager.requests.request_decisions import decide
from services.pool_manager.requests.request_replies import QueuedRequest
from services.pool_manager.service import build
from services.saga.definitions import DEFINITIONS
from services.saga.definitions.saga_steps import IMMEDIATE_SECONDS, checkpoint_seconds
from services.saga.next_entry import Impossible, Waiting, next_entry, proceed
from services.saga.saga_state import SagaState, fold
from tests.pool_manager.fleet import ask, events, settings, settled, under_way
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DRAIN = DEFINITIONS["drain"]
SAGA = "drain-n1-1"


def after(seconds: float) -> datetime:
    """Return the moment this long after the drain began."""
    return NOW + timedelta(seconds=seconds)


def draining(**changes: Any) -> SagaState:
    """A saga whose node is cordoned and whose next step is the drain."""
    params = msgspec.structs.replace(
        SagaParams(pool="training", node="n1", drain_timeout_seconds=600), **changes
    )
    about: dict[str, Any] = {"time": NOW, "saga": SAGA}
    state = fold(None, SagaStarted(id="s", kind="drain", params=params, **about), 1, {})
    state = fold(state, StepStarted(id="a", step="cordon", **about), 2, {})
    return fold(state, StepSucceeded(id="b", step="cordon", **about), 3, {})


def started_drain(state: SagaState) -> tuple[StepStarted, SagaState]:
    """Return the drain's step request, and the log with it."""
    entry = next_entry(DRAIN, state, None, NOW)
    assert isinstance(entry, StepStarted)
    return entry, fold(state, entry, 4, {})


@pytest.mark.parametrize(
    ("params", "deadline", "overdue", "wait"),
    [
        ({}, after(600), None, True),
        ({"drain": "wait"}, None, after(600), True),
        ({"drain": "immediate"}, after(IMMEDIATE_SECONDS), None, False),
    ],
)
def test_drain_mode_sets_how_long_a_drain_waits(
    params: dict[str, Any], deadline: datetime | None, overdue: datetime | None, wait: bool
) -> None:
    """`deadline` expires, `wait` only publishes that it is overdue, `immediate` does not wait."""
    entry, _ = started_drain(draining(**params))

    assert (deadline, overdue, wait) == (entry.deadline, entry.overdue, entry.inputs["wait"])


@pytest.mark.parametrize(
    ("params", "seconds"),
    [
        ({"checkpoint_seconds": 0.0}, 0.0),
        ({}, 300.0),
        ({"fault_signature": "xid-48"}, 300.0),
        ({"drain": "wait"}, 300.0),
        ({"drain_timeout_seconds": 60.0}, 60.0),
        # work that is dead, or whose node is taken, is not asked
        ({"fault_signature": "silence"}, 0.0),
        ({"fault_signature": "xid-79"}, 0.0),
        ({"fault_signature": "fallen_off_bus"}, 0.0),
        ({"gone": True}, 0.0),
        ({"drain": "immediate"}, 0.0),
        ({"order": "launch_ahead"}, 0.0),
    ],
)
def test_fault_and_mode_decide_whether_work_is_asked_for_a_checkpoint(
    params: dict[str, Any], seconds: float
) -> None:
    """The time is part of the drain's own."""
    found = checkpoint_seconds(
        msgspec.structs.replace(SagaParams(pool="p", checkpoint_seconds=300.0), **params)
    )
    assert found == seconds


def test_overdue_drain_is_logged_once_and_keeps_waiting() -> None:
    """One entry reports it past drain_timeout; a year later the saga still waits."""
    _, state = started_drain(draining(drain="wait"))
    early = next_entry(DRAIN, state, None, after(599))
    overdue = next_entry(DRAIN, state, None, after(601))
    assert isinstance(overdue, StepOverdue)
    later = next_entry(DRAIN, fold(state, overdue, 5, {}), None, after(31_536_000))

    assert isinstance(early, Waiting)
    assert Waiting("drain", None) == later


def test_proceed_ends_the_wait_of_a_drain_only() -> None:
    """The step counts as expired and the saga continues; a cordon cannot be skipped."""
    _, state = started_drain(draining(drain="wait"))
    entry = proceed(DRAIN, state, NOW, reason="enough", cause="request-5", asked=True)
    assert isinstance(entry, StepExpired)
    gone_on = fold(state, entry, 5, {})
    fresh = fold(
        None,
        SagaStarted(id="s", time=NOW, saga=SAGA, kind="drain", params=state.params),
        1,
        {},
    )
    cordoning = fold(fresh, StepStarted(id="a", step="cordon", time=NOW, saga=SAGA), 2, {})

    assert ("expired", "enough", "request-5") == (
        gone_on.step("drain").status,
        gone_on.step("drain").reason,
        gone_on.asked,
    )
    assert isinstance(proceed(DRAIN, cordoning, NOW, reason="enough"), Impossible)
    assert isinstance(proceed(DRAIN, gone_on, NOW, reason="enough"), Impossible)


SPEC = PoolSpec(
    provider="p", instance_type="t", min_nodes=0, max_nodes=9, drain_timeout=Duration(600)
)


@pytest.mark.parametrize(
    ("pool", "payload", "expected"),
    [
        ("deadline", {}, ("deadline", 600)),
        ("wait", {}, ("wait", 600)),
        ("deadline", {"mode": "wait"}, ("wait", 600)),
        ("deadline", {"timeout": "10s"}, ("deadline", 10)),
        ("wait", {"timeout": "10s"}, ("deadline", 10)),
        ("wait", {"mode": "wait", "timeout": "1h"}, ("wait", 3600)),
        ("wait", {"mode": "immediate"}, ("immediate", 600)),
        ("deadline", {"mode": "immediate", "timeout": "5s"}, None),
        ("deadline", {"mode": "soon"}, None),
        ("deadline", {"timeout": "a while"}, None),
    ],
)
@pytest.mark.parametrize("verb", ["drain", "replace"])
def test_request_overrides_the_pools_drain_mode(
    verb: str, pool: Any, payload: dict[str, str], expected: tuple[str, float] | None
) -> None:
    """Omitted fields come from the pool; invalid values are refused with an example."""
    spec = msgspec.structs.replace(SPEC, drain=pool)
    node = NodeRecord(pool="training", node="n1", state="active", health="healthy")
    snapshot = PoolSnapshot(
        fleet="f", record=PoolRecord(name="training", spec=spec, desired=1), nodes=Nodes([node])
    )
    body = msgspec.json.encode({"node": "n1", **payload})
    answer = decide(
        QueuedRequest(id="r", time=NOW, pool="training", verb=verb, payload=body), snapshot, NOW
    )

    if expected is None:
        assert isinstance(answer.event, RequestRefused)
        assert '"timeout": "10m"' in answer.event.reason
        return
    assert isinstance(answer.event, RequestAccepted)
    assert answer.record is not None
    [opened] = answer.record.open.values()
    params = saga_params("f", answer.record, opened)
    assert expected == (params.drain, params.drain_timeout_seconds)


def test_reconciler_leaves_the_drain_mode_to_the_pool() -> None:
    """Sagas that the reconciler opens set no drain mode."""
    record = PoolRecord(name="t", spec=msgspec.structs.replace(SPEC, drain="wait"), desired=1)
    params = saga_params("f", record, OpenSaga(kind="replace", node="n1", since=NOW))

    assert ("wait", 600) == (params.drain, params.drain_timeout_seconds)


# --- on a real server ----------------------------------------------------------------------------


@pytest.fixture
async def peers(bus: NatsBus) -> AsyncIterator[Peers]:
    """The other services; the work never ends by itself."""
    async with Peers(bus) as taking_part:
        taking_part.hold["drain"] = asyncio.Event()
        yield taking_part


async def test_overdue_drain_is_published_and_proceeds_on_request(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Overdue is published once with the command; `proceed` ends the wait and the step."""
    configured = settings(drain="wait", drain_timeout=Duration(0.2))
    async with Running(server.url, "pool-manager", build, configured):
        before = await eventually(settled(bus, 3))
        await peers.make_unhealthy("training", before[0])
        [overdue] = await eventually(lambda: events(bus, "saga-overdue"))
        saga = f"replace-{before[0]}-1"
        assert not peers.count("terminate")
        await ask(bus, "proceed", saga=saga, by="ops", reason="it hangs")
        [replaced] = await eventually(lambda: events(bus, "node-replaced"))
        await eventually(settled(bus, 3))
        log = await bus.read("SAGAS", subjects.saga_tree(saga))
        [accepted] = await events(bus, "request-accepted")

    subjects_ = [each.subject.removeprefix(f"navarch.v1.saga.{saga}.") for each in log]
    assert ["drain.started", "drain.overdue", "drain.expired"] == [
        each for each in subjects_ if each.startswith("drain.")
    ]
    assert (saga, "drain", before[0]) == (overdue["saga"], overdue["step"], overdue["node"])
    assert f"navarch saga proceed {saga}" in overdue["remedy"]
    assert (before[0], "proceed") == (replaced["old_node"], accepted["verb"])
    assert 1 == len(await events(bus, "saga-overdue"))


async def test_proceed_is_refused_when_no_drain_is_under_way(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """A saga at another step refuses with the reason, and continues."""
    peers.hold["cordon"] = asyncio.Event()
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await peers.make_unhealthy("training", before[0])
        await eventually(under_way(peers, "cordon"))
        await ask(bus, "proceed", saga=f"replace-{before[0]}-1")
        [refused] = await eventually(lambda: events(bus, "request-refused"))

    assert "wrong-state" == refused["refusal"]
    assert "is at cordon, which cannot be cut short" in refused["reason"]
