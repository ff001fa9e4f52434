"""`navarch why` and saga progress explain from stored messages, and on a real bus."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.breaker_state import Breaker
from schemas.health_records import HealthRecord
from schemas.held_conditions import ConditionList, HeldCondition
from schemas.messages import Message, encode
from schemas.node_events import FACTS as NODE_FACTS
from schemas.node_events import Fault, NodeEvent, Verdict
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import FACTS as POOL_FACTS
from schemas.pool_events import BreakerOpened, PoolEvent, RequestRefused, SagaOpened
from schemas.pool_records import OpenSaga, PoolRecord, pool_key
from schemas.present_answers import BlockedNode
from schemas.saga_log_entries import (
    STATUSES,
    WHOLE,
    SagaDone,
    SagaEntry,
    SagaStarted,
    SagaStuck,
    SagaUnwinding,
    SagaUnwound,
    StepEntry,
    StepFailed,
    StepStarted,
    StepSucceeded,
    UndoStarted,
)
from schemas.saga_params import SagaParams
from schemas.settings import HealthSpec, PoolSpec
from schemas.time_text import utc_seconds
from schemas.topology import ANSWERS, HEALTH, NODES, POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.bus.topology_setup import NEWER, set_up
from services.fleet_client.explanation import why
from services.fleet_client.fleet_client import FleetClient, NoReplyError
from services.fleet_client.fleet_status import fleet_state
from services.fleet_client.saga_progress import progress
from services.fleet_client.why_answer import WhyAnswer
from services.fleet_client.why_text import LINES_MAX, why_node, why_page, why_pool, why_saga
from services.pool_manager.planner.explanation.pool_explanation import present_answer
from services.pool_manager.planner.node_counts import Nodes
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError
from services.saga.saga_log import append
from services.saga.saga_state import SagaState, fold
from tests.cli.test_commands import navarch
from tests.support.explained import explained_node

NOW = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)
SOON = NOW + timedelta(minutes=5)
SAGA = "replace-n1-1"
ABOUT: dict[str, Any] = {"time": NOW, "saga": SAGA}
NODE: dict[str, Any] = {"time": NOW, "pool": "training", "node": "n1"}
POOL: dict[str, Any] = {"time": NOW, "pool": "training"}
SPEC = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=9)

FAULT = Fault(id="f1", kind="xid", code=79, gpu_index=3, message="off the bus", **NODE)
VERDICT = Verdict(
    id="v1", status="unhealthy", action="replace", rule="fatal", policy="9f2c", reason="XID 79",
    fault="f1", **NODE,
)  # fmt: skip
BEGAN = SagaOpened(
    id="b1", saga=SAGA, kind="replace", node="n1", new_node="n2", reason="XID 79", **POOL
)
REFUSED = RequestRefused(
    id="r1", verb="drain", node="n1", refusal="saga-open", reason="replace is under way", **POOL
)
HELD = BreakerOpened(
    id="o1", unavailable=2, limit=2, waiting=("n1",), reason="1 unhealthy waits", **POOL
)
STARTED = SagaStarted(
    id="s1",
    kind="replace",
    params=SagaParams(pool="training", node="n1", new_node="n2", reason="XID 79", fault="f1"),
    **ABOUT,
)


def step(kind: type[StepEntry], name: str, **more: Any) -> StepEntry:
    """Return an entry about a step."""
    return kind(id=f"{name}.{kind.__name__}", step=name, **more, **ABOUT)


DEADLINE = NOW + timedelta(hours=1)
DRAINING: tuple[SagaEntry, ...] = (
    STARTED,
    step(StepStarted, "cordon"),
    step(StepSucceeded, "cordon"),
    step(StepStarted, "drain", deadline=DEADLINE),
)


def subject(message: Message) -> str:
    """Return the subject under which a message is stored."""
    if isinstance(message, NodeEvent):
        return subjects.node_event(message.pool, message.node, NODE_FACTS[type(message)])
    if isinstance(message, PoolEvent):
        return subjects.pool_event(message.pool, POOL_FACTS[type(message)])
    assert isinstance(message, SagaEntry)
    name = message.step if isinstance(message, StepEntry) else WHOLE
    return subjects.saga_entry(message.saga, name, STATUSES[type(message)])


def stored(*messages: Message) -> list[Stored]:
    """Messages as they are stored on the bus, a second apart."""
    return [
        Stored(subject(each), encode(each), i + 1, NOW + timedelta(seconds=i))
        for i, each in enumerate(messages)
    ]


def explained(
    pool: PoolRecord,
    nodes: list[NodeRecord],
    messages: Sequence[Stored] = (),
    sagas: Sequence[SagaState] = (),
) -> WhyAnswer:
    """A pool explained with what the pool-manager answers about it."""
    return why_pool(pool, nodes, present_answer(pool, Nodes(nodes), NOW), messages, sagas)


def folded(*entries: SagaEntry) -> SagaState:
    """Return the folded state of entries."""
    state: SagaState | None = None
    for i, each in enumerate(entries, 1):
        state = fold(state, each, i, {})
    assert state is not None
    return state


STUCK = (
    *(STARTED, step(StepStarted, "cordon"), step(StepSucceeded, "cordon")),
    step(StepStarted, "terminate"),
    step(StepFailed, "terminate", reason="not allowed"),
    SagaStuck(id="st", step="terminate", reason="not allowed", **ABOUT),
)
UNWINDING = SagaUnwinding(id="u", step="drain", reason="cancelled", cancelled=True, **ABOUT)

WAITS = [
    ("begun", (STARTED,), "the pool-manager to continue", "cordon"),
    ("draining", DRAINING, "the work on n1 to leave", "drain"),
    ("stopping", (*DRAINING, UNWINDING), "drain to be stopped", "drain"),
    (
        "undoing",
        (STARTED, step(StepStarted, "provision"), UNWINDING, step(UndoStarted, "provision")),
        "the provider to confirm that n2 is gone",
        "provision",
    ),
    ("stuck", STUCK, f"an operator; then: navarch saga retry {SAGA}", "terminate"),
    ("done", (STARTED, SagaDone(id="d", **ABOUT)), "", ""),
    ("unwound", (STARTED, UNWINDING, SagaUnwound(id="w", **ABOUT)), "", ""),
]


@pytest.mark.parametrize(
    ("entries", "waiting_for", "at"), [pytest.param(*rest, id=name) for name, *rest in WAITS]
)
def test_a_saga_says_what_it_waits_for(
    entries: tuple[SagaEntry, ...], waiting_for: str, at: str
) -> None:
    """Each state has one sentence, at one step; an ended saga has none."""
    where = progress(folded(*entries))

    assert (waiting_for, at) == (where.waiting_for, where.step)


def test_a_saga_has_every_step_with_its_times() -> None:
    """The steps are in order: what has ended, what is under way, and what follows."""
    steps = progress(folded(*DRAINING)).steps
    assert ("cordon", "succeeded") == (steps[0].step, steps[0].status)
    assert steps[0].started_at
    assert steps[0].ended_at
    statuses = [each.status for each in steps]
    assert statuses == ["succeeded", "started"] + ["pending"] * (len(steps) - 2)
    assert steps[1].started_at
    assert steps[1].ended_at is None


def test_a_started_step_has_its_deadline_and_the_next_steps() -> None:
    """Both are in the log."""
    where = progress(folded(*DRAINING))

    assert DEADLINE == where.deadline
    assert ("terminate", "provision", "bootstrap", "register", "admit") == where.next


def test_a_node_that_is_being_replaced_is_explained_from_its_fault_on() -> None:
    """Observed, judged, decided, done, refused; what it waits for, since when and until when."""
    node = NodeRecord(
        pool="training", node="n1", state="leaving", health="unhealthy", cordoned=True, saga=SAGA
    )
    lines = stored(FAULT, VERDICT, BEGAN, *DRAINING, REFUSED)
    answer = why_node(node, BlockedNode(), lines, [folded(*DRAINING)])

    assert "n1 in pool training is leaving, unhealthy, cordoned." == answer.summary
    assert [
        ("observed", "n1 fault: XID 79 on GPU 3: off the bus"),
        ("judged", "n1 unhealthy: XID 79 (rule fatal, action replace, policy 9f2c)"),
        ("decided", f"{SAGA} saga opened: replace n1 -> n2: XID 79"),
        ("done", f"{SAGA} cordon succeeded after 1.0 s"),
        ("refused", "training refused: drain n1 (saga-open): replace is under way"),
    ] == [(each.topic, each.text) for each in answer.lines]
    span = f"since {utc_seconds(NOW)}, at most until {utc_seconds(DEADLINE)}."
    assert (f"It waits for the work on n1 to leave (at drain), {span}",) == answer.now
    assert "terminate, provision, bootstrap, register, admit" == answer.next


UNHEALTHY = NodeRecord(pool="training", node="n1", state="active", health="unhealthy")
OPEN = Breaker(state="open", since=NOW, cause="level", reason="1 of 3 nodes are out of service")
HELD_BACK = [
    ("breaker", {"breaker": OPEN}, UNHEALTHY, "It waits for the breaker, which is open since"),
    (
        "launches",
        {"failures": 3, "retry_at": SOON},
        UNHEALTHY,
        "It waits for the next try: 3 tries in a row failed",
    ),
    (
        "by configuration",
        {"spec": msgspec.structs.replace(SPEC, health=HealthSpec(auto_replace=False))},
        UNHEALTHY,
        "Nothing is in progress: the pool has auto_replace: false",
    ),
    (
        "silent",
        {},
        NodeRecord(
            pool="training", node="n1", state="active", health="healthy", lost=True, lost_at=NOW
        ),
        "Its heartbeats stopped at",
    ),
    ("its turn", {}, UNHEALTHY, "It waits for its turn"),
    (
        "cordoned",
        {},
        NodeRecord(pool="training", node="n1", state="active", health="healthy", cordoned=True),
        "Nothing is in progress; it gets no new work",
    ),
    (
        "well",
        {},
        NodeRecord(pool="training", node="n1", state="active", health="healthy"),
        "Nothing is in progress, and it waits for nothing.",
    ),
]


@pytest.mark.parametrize(
    ("changes", "node", "now"), [pytest.param(*rest, id=name) for name, *rest in HELD_BACK]
)
def test_an_idle_node_is_explained(changes: dict[str, Any], node: NodeRecord, now: str) -> None:
    """The answer begins with what blocks its replacement, or says that there is nothing to do."""
    pool = msgspec.structs.replace(PoolRecord(name="training", spec=SPEC, desired=3), **changes)
    answer = why_node(node, explained_node(node, pool, NOW), stored(FAULT, VERDICT, HELD), [])

    assert answer.now[0].startswith(now)


def test_a_pool_names_its_breaker_its_failures_and_what_each_saga_waits_for() -> None:
    """The answer has them in the order of importance."""
    pool = PoolRecord(
        name="training",
        spec=SPEC,
        desired=3,
        breaker=OPEN,
        failures=2,
        retry_at=SOON,
        open={SAGA: OpenSaga(kind="replace", node="n1", new_node="n2", since=NOW)},
    )
    other = msgspec.structs.replace(UNHEALTHY, node="n3", health_reason="XID 48")
    answer = explained(pool, [UNHEALTHY, other], stored(BEGAN, HELD), [folded(*DRAINING)])

    assert "has 2 of 3 desired nodes, 0 of them healthy" in answer.summary
    begins = (
        "The breaker is open since",
        "2 tries in a row failed",
        f"{SAGA}: it waits for the work on n1",
        "n3: XID 48. It waits for the same",
    )
    assert [True] * 4 == [
        each.startswith(begin) for each, begin in zip(answer.now, begins, strict=True)
    ]


def test_a_pool_does_not_count_a_lost_node_as_in_service() -> None:
    """A lost node keeps the health that it had before it fell silent."""
    pool = PoolRecord(name="training", spec=SPEC, desired=2)
    node = NodeRecord(pool="training", node="n1", state="active", health="healthy")
    lost = msgspec.structs.replace(node, node="n2", lost=True, lost_at=NOW)

    assert "2 of 2 desired nodes, 1 of them healthy" in explained(pool, [node, lost]).summary


def test_a_pool_that_is_removed_names_what_blocks_it() -> None:
    """A held node does not leave, and so neither does its pool."""
    pool = PoolRecord(
        name="training",
        spec=SPEC,
        desired=0,
        removing="request-7",
        open={"s": OpenSaga(kind="scale-down", node="n2", since=NOW)},
    )
    node = NodeRecord(pool="training", node="n1", state="active", health="healthy")
    held = msgspec.structs.replace(node, held_until=SOON, held_by="me", held_reason="mine")
    leaves = msgspec.structs.replace(held, node="n2")
    now = explained(pool, [held, leaves]).now

    assert "It is being removed: 2 nodes remain." == now[0]
    assert now[1].startswith("n1: It is held until ")
    assert now[1].endswith("navarch release n1")
    assert 2 == len(now)


def test_a_pool_names_unhealthy_nodes_without_a_remediation() -> None:
    """The answer is not "nothing is in progress" while a node is unhealthy, cordoned or missing."""
    spec = msgspec.structs.replace(SPEC, health=HealthSpec(auto_replace=False))
    pool = PoolRecord(name="training", spec=spec, desired=4)
    unhealthy = msgspec.structs.replace(UNHEALTHY, health_reason="XID 48")
    cordoned = NodeRecord(pool="training", node="n4", state="active", cordoned=True)
    answer = explained(pool, [unhealthy, cordoned])

    begins = (
        "2 nodes are missing: the pool-manager launches them at its next look.",
        "n1: XID 48. Nothing is in progress: the pool has auto_replace: false",
        "n4 is cordoned; to return it to service: navarch uncordon n4",
    )
    assert [True] * 3 == [
        each.startswith(begin) for each, begin in zip(answer.now, begins, strict=True)
    ]


def test_a_terminated_node_names_its_replacement_and_its_evidence() -> None:
    """The answer has the name of the new node and the command for the evidence."""
    gone = msgspec.structs.replace(UNHEALTHY, state="terminated", saga="")
    done = folded(*DRAINING)
    state = msgspec.structs.replace(done, status="done")
    answer = why_node(gone, BlockedNode(), [], [state], has_evidence=True)

    assert ("It is terminated; nothing is in progress. n2 replaced it.",) == answer.now
    assert "See:   navarch evidence n1" in why_page(answer)


def test_a_stuck_saga_says_where_why_and_what_to_do() -> None:
    """The sentence has the reason and the remedy."""
    answer = why_saga(folded(*STUCK), stored(FAULT, *STUCK))

    assert f"navarch saga retry {SAGA}" in answer.now[0]
    assert answer.now[0].startswith("It is stuck at terminate since")
    assert "not allowed" in answer.now[0]
    assert "n1 fault: XID 79 on GPU 3: off the bus" == answer.lines[0].text


def test_a_long_history_shows_its_end_and_the_number_of_omitted_lines() -> None:
    """The output is bounded."""
    faults = [msgspec.structs.replace(FAULT, id=f"f{i}") for i in range(LINES_MAX + 5)]
    answer = why_node(UNHEALTHY, BlockedNode(), stored(*faults), [])

    assert (LINES_MAX, 5) == (len(answer.lines), answer.omitted)
    assert "5 older lines" in why_page(answer)


# --- on a real bus -------------------------------------------------------------------------------


@pytest.fixture
async def replacing(bus: NatsBus) -> NatsBus:
    """A bus with a node that is being replaced, without services."""
    for message in (FAULT, VERDICT, BEGAN, REFUSED):
        await bus.publish(subject(message), encode(message))
    sequence = 0
    for entry in DRAINING:
        sequence = await append(bus, entry, sequence, {})
    node = msgspec.structs.replace(UNHEALTHY, state="leaving", saga=SAGA)
    opened = {SAGA: OpenSaga(kind="replace", node="n1", new_node="n2", since=NOW)}
    pool = PoolRecord(name="training", spec=SPEC, desired=3, open=opened)
    await bus.create(NODES, node_key("training", "n1"), encode(node))
    await bus.create(POOLS, pool_key("training"), encode(pool))
    return bus


@pytest.mark.parametrize(("name", "kind"), [("n1", "node"), ("training", "pool"), (SAGA, "saga")])
async def test_a_node_a_pool_and_a_saga_are_explained_by_name(
    replacing: NatsBus, name: str, kind: str
) -> None:
    """The answer has history and what is waited for, and says that no service answers."""
    answer = await why(FleetClient(replacing), name)

    assert (name, kind) == (answer.about, answer.kind)
    assert "decided" in {each.topic for each in answer.lines}
    assert "the work on n1 to leave" in "".join(answer.now)
    assert answer.now[0].startswith("The pool-manager does not answer") == (kind != "saga")


async def test_an_unknown_name_is_an_error_that_names_the_lists(replacing: NatsBus) -> None:
    """The error is one sentence, also for an invalid name."""
    for name in ("n9", "No!"):
        with pytest.raises(NavarchError, match="navarch saga list"):
            await why(FleetClient(replacing), name)


async def test_the_commands_print_text_and_json(replacing: NatsBus, server: EmbeddedServer) -> None:
    """Each command prints text, and JSON where it is asked for."""
    unread = HeldCondition(name="nvml", since=1.0, unknown=True, message="a call hangs")
    seen = ConditionList(boot_id="b", counter=1, held=(unread,))
    health = HealthRecord(pool="training", node="n1", since=NOW, conditions=seen)
    await replacing.create(HEALTH, node_key("training", "n1"), encode(health))
    _, listed, _ = await navarch("saga", "list", url=server.url)
    _, shown, _ = await navarch("saga", "show", SAGA, url=server.url)
    _, as_json, _ = await navarch("saga", "show", SAGA, "-o", "json", url=server.url)
    _, out, _ = await navarch("why", "n1", url=server.url)
    code, _, err = await navarch("saga", "show", "n9", url=server.url)

    assert SAGA in listed
    assert "the work on n1 to leave" in listed
    assert "it leaves the old node cordoned" in shown
    assert 4 == len(json.loads(as_json)["log"])
    assert "Now:   It waits for the work on n1 to leave" in out
    assert "Now:   nvml is unknown since" in out
    assert 1 == code
    assert "there is no saga 'n9'" in err


async def test_a_fleet_of_the_release_before_is_explained(replacing: NatsBus) -> None:
    """The older pool-manager neither answers the query nor makes the bucket."""
    await replacing.admin(f"STREAM.DELETE.{ANSWERS.stream().name}", {})
    answer = await why(FleetClient(replacing), "n1")

    assert answer.now[0].endswith("has stored no answer about pool training.")
    assert "the work on n1 to leave" in answer.now[1]
    with pytest.raises(NoReplyError, match="is the pool-manager running"):
        await fleet_state(FleetClient(replacing), lambda _: True)


async def test_no_service_waits_for_what_the_release_before_does_not_make(bus: NatsBus) -> None:
    """A service that is upgraded before the pool-manager starts all the same."""
    for name in NEWER:
        await bus.admin(f"STREAM.DELETE.{name}", {})
    await set_up(bus, SystemClock(), replicas=1, durables=(), waits=True)
