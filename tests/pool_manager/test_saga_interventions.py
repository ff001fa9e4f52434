"""Operators and sagas: cancel, retry, uncordon. Decisions, then on a real server."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.enums import STOPPED
from schemas.node_records import NodeRecord
from schemas.pool_events import RequestAccepted, RequestRefused
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_log_entries import (
    SagaDone,
    SagaEntry,
    SagaRetried,
    SagaStarted,
    SagaStuck,
    SagaUnwinding,
    SagaUnwound,
    StepExpired,
    StepFailed,
    StepStarted,
    StepSucceeded,
)
from schemas.saga_params import SagaParams
from schemas.settings import PoolSpec
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import close
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.saga_projection import follow_up, leaving_node, promoted_node
from services.pool_manager.requests.request_decisions import decide, saga_asked_about
from services.pool_manager.requests.request_replies import QueuedRequest
from services.pool_manager.service import build
from services.saga.saga_state import SagaState, fold
from tests.pool_manager.fleet import ask, events, nodes, peers, settings, settled, under_way
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SAGA = "replace-n1-3"
ABOUT: dict[str, Any] = {"time": NOW, "saga": SAGA}


def log(*entries: SagaEntry, kind: Any = "replace", order: str = "terminate_first") -> SagaState:
    """Return a saga about n1, with these entries after its first."""
    params = SagaParams(pool="training", node="n1", new_node="n9", order=order)
    first = SagaStarted(id=f"{SAGA}.started", kind=kind, params=params, **ABOUT)
    state = fold(None, first, 1, {})
    for sequence, entry in enumerate(entries, 2):
        state = fold(state, entry, sequence, {})
    return state


def done(*steps: str) -> list[SagaEntry]:
    """Entries of steps that succeeded."""
    return [
        kind(id=f"{SAGA}.{step}", step=step, **ABOUT)
        for step in steps
        for kind in (StepStarted, StepSucceeded)
    ]


def started(step: str) -> SagaEntry:
    """Return the entry of a step under way."""
    return StepStarted(id=f"{SAGA}.{step}.started", step=step, **ABOUT)


STUCK = [
    *done("cordon", "provision", "bootstrap", "register", "admit", "drain"),
    started("terminate"),
    StepFailed(id="f", step="terminate", reason="no", **ABOUT),
    SagaStuck(id="s", step="terminate", reason="no", **ABOUT),
]


def snapshot(kind: Any = "replace", **changes: Any) -> PoolSnapshot:
    """A pool whose n1 has that saga open."""
    spec = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=9)
    opened = {SAGA: OpenSaga(kind=kind, node="n1", new_node="n9", since=NOW)}
    node = NodeRecord(pool="training", node="n1", state="leaving", sagas=2, health="unhealthy")
    return PoolSnapshot(
        fleet="f",
        record=PoolRecord(name="training", spec=spec, desired=1, open=opened),
        nodes=Nodes([msgspec.structs.replace(node, **changes)]),
    )


def asked(verb: str, **payload: str) -> QueuedRequest:
    """Return request 5 with this verb and payload."""
    return QueuedRequest(
        id="request-5",
        time=NOW,
        pool="training",
        verb=verb,
        payload=msgspec.json.encode(payload),
    )


CANCEL = asked("cancel", saga=SAGA, by="ops")
RETRY = asked("retry", saga=SAGA)
UNCORDON = asked("uncordon", node="n1", by="ops", reason="it is fine")
TURNED = SagaUnwinding(
    id="u", step="drain", reason="r", cancelled=True, cause="request-5", then="t", **ABOUT
)

DECISIONS = [
    ("a saga under way", CANCEL, log(*done("cordon"), started("drain")), SagaUnwinding, ""),
    ("a saga that has just begun", CANCEL, log(), SagaUnwinding, ""),
    ("the old node is going", CANCEL, log(*done("cordon", "drain"), started("terminate")), None,
     "wrong-state"),
    ("stuck", CANCEL, log(*STUCK, order="provision_first"), None, "wrong-state"),
    ("stuck", RETRY, log(*STUCK, order="provision_first"), SagaRetried, ""),
    ("not stuck", RETRY, log(started("cordon")), None, "wrong-state"),
    ("redelivered", CANCEL, log(started("cordon"), TURNED), None, ""),
    ("redelivered late", CANCEL,
     log(TURNED, SagaUnwound(id="w", **ABOUT)), None, ""),
    ("another's is unwinding", asked("cancel", saga=SAGA), log(
        msgspec.structs.replace(TURNED, cause="request-4")), None, "wrong-state"),
    ("ended", CANCEL, log(*done("cordon"), SagaDone(id="d", **ABOUT)), None, "wrong-state"),
    ("no such saga", CANCEL, None, None, "unknown-saga"),
    ("no such id", asked("cancel", saga="No!"), None, None, "unknown-saga"),
    ("not a saga's key", asked("cancel", node="n1"), None, None, "invalid-request"),
    ("uncordon under way", UNCORDON, log(*done("cordon"), started("drain")), SagaUnwinding, ""),
    ("uncordon redelivered", UNCORDON, log(started("cordon"), TURNED), None, ""),
    ("uncordon too late", UNCORDON, log(started("terminate")), None, "wrong-state"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "state", "entry", "refusal"),
    [pytest.param(*rest, id=f"{rest[0].verb}-{name}") for name, *rest in DECISIONS],
)
def test_request_about_a_saga_is_decided_by_its_log(
    request_: QueuedRequest, state: SagaState | None, entry: type[SagaEntry] | None, refusal: str
) -> None:
    """One entry to append, a refusal with the reason, or nothing if it was applied before."""
    answer = decide(request_, snapshot(), NOW, state)

    assert (entry or type(None)) is type(answer.entry)
    assert (RequestRefused if refusal else RequestAccepted) is type(answer.event)
    assert refusal == getattr(answer.event, "refusal", "")
    if isinstance(answer.event, RequestRefused):
        assert answer.event.reason


def test_which_log_a_request_needs() -> None:
    """A request about a node needs the open saga of that node, which may have ended already."""
    requests = (CANCEL, UNCORDON, asked("cordon", node="n1"), asked("uncordon", node="n2"))

    assert [SAGA, SAGA, SAGA, ""] == [saga_asked_about(each, snapshot()) for each in requests]


def test_uncordon_that_cancels_names_the_saga_that_follows() -> None:
    """The log and the reply have the same ID, numbered after the saga that is unwound."""
    answer = decide(UNCORDON, snapshot(), NOW, log(started("cordon")))

    assert isinstance(answer.entry, SagaUnwinding)
    assert isinstance(answer.event, RequestAccepted)
    assert "uncordon-n1-4" == answer.entry.then == answer.event.saga
    assert "uncordon asked by ops: it is fine" == answer.entry.reason


def test_following_saga_opens_with_the_close_of_the_first() -> None:
    """Closing twice opens it once; the count of failed launches stays the same."""
    state = log(TURNED, SagaUnwound(id="w", **ABOUT))
    before = msgspec.structs.replace(
        snapshot().record, failures=2, retry_at=NOW + timedelta(hours=1)
    )
    once = follow_up(before, close(before, SAGA, failed=False, now=NOW), state, NOW)
    emptied = msgspec.structs.replace(once, open={})
    again = follow_up(emptied, close(emptied, SAGA, failed=False, now=NOW), state, NOW)

    assert {"t": ("uncordon", "n1", "request-5")} == {
        saga: (each.kind, each.node, each.cause) for saga, each in once.open.items()
    }
    assert (2, before.retry_at) == (once.failures, once.retry_at)
    assert {} == again.open


def test_uncordon_clears_the_verdict_until_the_next_one() -> None:
    """The uncordon clears the old verdict once; a later one counts."""
    state = log(*done("uncordon"), kind="uncordon")
    unhealthy = NodeRecord(
        pool="training", node="n1", state="active", health="unhealthy", cordoned=True
    )
    fresh = leaving_node(unhealthy, state)
    assert fresh is not None
    judged = msgspec.structs.replace(fresh, health="unhealthy")
    ended = leaving_node(judged, fold(state, SagaDone(id="d", **ABOUT), 9, {}))
    assert ended is not None

    assert ("unknown", False) == (fresh.health, fresh.cordoned)
    assert "unhealthy" == ended.health


def test_operators_cordon_of_a_promoted_spare_is_kept() -> None:
    """The cordon remains when the rest of the replacement completes."""
    params = SagaParams(pool="training", node="n1", new_node="n9", promotes="s1", spare=True)
    first = SagaStarted(id=f"{SAGA}.started", kind="replace", params=params, **ABOUT)
    state = fold(None, first, 1, {})
    for sequence, entry in enumerate(done("cordon", "promote"), 2):
        state = fold(state, entry, sequence, {})
    spare = NodeRecord(pool="training", node="s1", state="active", spare=True, cordoned=True)
    serving = promoted_node(spare, state)
    assert serving is not None
    cordoned = msgspec.structs.replace(serving, cordoned=True)
    ended = fold(state, SagaDone(id="d", **ABOUT), 99, {})

    assert (False, False, "") == (serving.spare, serving.cordoned, serving.saga)
    assert cordoned == promoted_node(cordoned, ended)
    # The log was lost after the promotion, and its saga begun again took the node once more.
    waiting = msgspec.structs.replace(serving, saga=SAGA, saga_entry=1)
    assert promoted_node(waiting, state) == msgspec.structs.replace(waiting, saga="")


@pytest.mark.parametrize(
    ("ending", "cordoned"),
    [
        (StepSucceeded(id="c", step="cordon", **ABOUT), True),
        (StepFailed(id="c", step="cordon", reason="away", error=STOPPED, **ABOUT), True),
        (StepExpired(id="c", step="cordon", **ABOUT), True),
        (StepFailed(id="c", step="cordon", reason="no such node", **ABOUT), False),
    ],
)
def test_node_that_may_be_cordoned_is_recorded_as_cordoned(
    ending: SagaEntry, cordoned: bool
) -> None:
    """The participant died, or was stopped, after the workload system received the cordon."""
    begun = StepStarted(id="b", step="cordon", **ABOUT)
    unwinding = SagaUnwinding(id="u", step="cordon", reason="r", cancelled=True, **ABOUT)
    unwound = SagaUnwound(id="w", step="cordon", reason="r", **ABOUT)
    node = NodeRecord(pool="training", node="n1", state="active")
    left = leaving_node(node, log(begun, unwinding, ending, unwound))

    assert left is not None
    assert ("active", cordoned) == (left.state, left.cordoned)


# --- on a real server ----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [["cordon", "uncordon"], ["cordon", "drain", "uncordon"]])
async def test_uncordon_cancels_a_replacement(
    server: EmbeddedServer, bus: NatsBus, peers: Peers, steps: list[str]
) -> None:
    """The step under way is stopped, then the node uncordoned; nothing is terminated."""
    step = steps[-2]
    peers.hold[step] = asyncio.Event()
    async with (
        Running(server.url, "pool-manager", build, settings(), replica=1),
        Running(server.url, "pool-manager", build, settings(), replica=2),
    ):
        before = await eventually(settled(bus, 3))
        peers.calls.clear()
        await peers.make_unhealthy("training", before[0])
        await eventually(under_way(peers, step))
        await ask(bus, "uncordon", node=before[0], by="ops")
        [cancelled] = await eventually(lambda: events(bus, "saga-cancelled"))
        await eventually(lambda: bus.read("EVENTS", subjects.node_event_wildcard("uncordoned")))
        after = await eventually(settled(bus, 3))
        [view] = [each for each in await nodes(bus) if each.id == before[0]]

    assert sorted(before) == sorted(after)
    assert f"uncordon-{before[0]}-2" == cancelled["then"]
    assert (False, "unknown") == (view.cordoned, view.health)
    assert steps == [name for name, _ in peers.calls]
    assert [] == await events(bus, "saga-failed")


async def test_replacement_past_its_pivot_cannot_be_cancelled(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The refusal says why, and the replacement continues."""
    peers.hold["terminate"] = asyncio.Event()
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await peers.make_unhealthy("training", before[0])
        await eventually(under_way(peers, "terminate"))
        await ask(bus, "cancel", saga=f"replace-{before[0]}-1")
        [refused] = await eventually(lambda: events(bus, "request-refused"))
        peers.hold["terminate"].set()
        await eventually(lambda: events(bus, "node-replaced"))

    assert "wrong-state" == refused["refusal"]
    assert "has begun to terminate" in refused["reason"]


async def test_cancelled_launch_is_undone_and_retried(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The pool still needs its node: another is launched at once under another name."""
    peers.hold["provision"] = asyncio.Event()
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        await eventually(under_way(peers, "provision"))
        [(_, first)] = [call for call in peers.calls if call[0] == "provision"]
        await ask(bus, "cancel", saga=f"scale-up-{first}", by="ops", reason="wrong zone")
        [accepted] = await eventually(lambda: events(bus, "request-accepted"))
        await eventually(lambda: events(bus, "saga-cancelled"))
        peers.hold["provision"].set()
        names = await eventually(settled(bus, 1))

    assert "the pool still wants 1 nodes and will try again" in accepted["note"]
    assert first not in names
    assert set(names) == peers.instances


async def test_stuck_saga_continues_on_retry(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Stuck at terminate; a retry that fails makes it stuck again and publishes it again."""
    peers.fail["terminate"] = "not allowed to"
    async with Running(
        server.url, "pool-manager", build, settings(replace_order="provision_first")
    ):
        before = await eventually(settled(bus, 3))
        await peers.make_unhealthy("training", before[0])
        await eventually(lambda: events(bus, "saga-stuck"))
        await ask(bus, "retry", saga=f"replace-{before[0]}-1")

        async def again() -> bool:
            return len(await events(bus, "saga-stuck")) == 2

        await eventually(again)
        peers.fail.clear()
        await ask(bus, "retry", saga=f"replace-{before[0]}-1", reason="may now")
        [replaced] = await eventually(lambda: events(bus, "node-replaced"))
        await eventually(settled(bus, 3))

    assert before[0] == replaced["old_node"]
    assert 3 == len(peers.instances)
