"""Garbage on every subject harms nobody: it is dead-lettered or counted, and work goes on."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client

from schemas import subjects
from schemas.dead_letters import DeadLetter, dead_codec
from schemas.headers import SERVICE_ERROR
from schemas.messages import encode
from schemas.node_events import Verdict
from schemas.node_records import NodeRecord
from schemas.pool_events import FACTS, RequestRefused, ScaleRefused, pool_codec
from schemas.saga_log_entries import (
    STATUSES,
    StepEntry,
    StepExpired,
    StepSucceeded,
    UndoStarted,
    UndoSucceeded,
)
from schemas.topology import DEAD, EVENTS, POOL_REQUESTS, REQUESTS, SAGAS, TELEMETRY
from tests.support.inprocess import eventually
from tests.support.settling import busy
from tests.whole_fleet.fleet import Fleet, serving_fleet
from tests.whole_fleet.garbage import POOL, SHAPES, UNKNOWN, payloads, takers, targets, uncovered

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

POOLS = f"""
  {POOL}:
    min_nodes: 2
    max_nodes: 3
"""
AT_ONCE = 16
COUNTERS = "navarch_messages_total"


@dataclass(frozen=True, slots=True)
class Thrown:
    """One piece of garbage, where it lies."""

    subject: str
    shape: str
    stream: str
    sequence: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Two nodes."""
    async with serving_fleet(tmp_path_factory.mktemp("garbage"), POOLS) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    """Somebody's own NATS client."""
    connected = await nats.connect(fleet.url)
    yield connected
    await connected.close()


async def throw(client: Client, at: tuple[str, ...]) -> list[Thrown]:
    """Publish every shape of garbage on every subject, many at once."""
    stream = client.jetstream()
    room = asyncio.Semaphore(AT_ONCE)

    async def one(subject: str, shape: str, payload: bytes) -> Thrown:
        async with room:
            stored = await stream.publish(subject, payload, timeout=60)
        return Thrown(subject, shape, stored.stream, stored.seq)

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(one(each, shape, data))
            for each in at
            for shape, data in payloads(each).items()
        ]
    return [each.result() for each in tasks]


async def settled(fleet: Fleet, wanted: Counter[tuple[str, str]]) -> bool:
    """Whether every durable has dealt with all that lies in its stream, and counted it."""
    return not await busy(fleet.bus) and (await outcomes(fleet)).total() >= wanted.total()


async def dead_letters(fleet: Fleet) -> Counter[tuple[str, str, int]]:
    """Durable, subject and sequence of every dead letter that is one."""
    stored = await fleet.bus.read(DEAD.name, subjects.DEAD)
    found = (dead_codec.decode(each.data) for each in stored)
    return Counter(
        (each.durable, each.subject, each.sequence)
        for each in found
        if isinstance(each, DeadLetter)
    )


async def refusals(fleet: Fleet) -> Counter[str]:
    """How many requests were refused, by the event that said so."""
    stored = await fleet.bus.read(EVENTS.name, subjects.POOL_EVENTS)
    events = (pool_codec.decode(each.data) for each in stored)
    return Counter(
        FACTS[type(each)] for each in events if isinstance(each, ScaleRefused | RequestRefused)
    )


async def outcomes(fleet: Fleet) -> Counter[tuple[str, str]]:
    """How many messages each durable has settled as garbage, by outcome."""
    found = await fleet.counters(COUNTERS)
    return Counter(
        {
            (durable, outcome): int(number)
            for (durable, outcome), number in found.items()
            if outcome in ("invalid", "unknown", "dead")
        }
    )


def expected(thrown: list[Thrown]) -> Counter[tuple[str, str]]:
    """What each durable is to make of it; garbled requests are answered instead."""
    found: Counter[tuple[str, str]] = Counter()
    for each in thrown:
        for durable in takers(each.subject):
            if durable is not POOL_REQUESTS:
                found[durable.name, "unknown" if each.shape == UNKNOWN else "invalid"] += 1
            elif subjects.parse_pool_request(each.subject) is None or "Not_A" in each.subject:
                found[durable.name, "invalid"] += 1
    return found


async def test_garbage_on_every_subject_is_accounted_for_and_stops_nothing(
    fleet: Fleet, client: Client
) -> None:
    """No process ends, each piece is dead-lettered or counted, the open saga goes on to its end."""
    sick, _ = await fleet.active(POOL, 2)
    pids = fleet.pids
    places = await fleet.places()
    fleet.around.busy.add(sick.node)
    fleet.break_gpu(sick)
    await fleet.around.until(lambda: sick.node in fleet.around.asked)
    (saga,) = await open_sagas(fleet, sick)

    at = targets(sick.node, saga)
    thrown = await throw(client, (*at, *uncovered(at)))
    # What came on the open saga's own commands waits behind the drain that is under way.
    fleet.around.busy.clear()
    replaced = await fleet.replaced(sick.node, places[EVENTS.name])
    assert replaced.saga == saga
    await eventually(lambda: settled(fleet, expected(thrown)))

    assert await outcomes(fleet) == expected(thrown)
    assert await dead_letters(fleet) == Counter(
        (durable.name, each.subject, each.sequence)
        for each in thrown
        for durable in takers(each.subject)
        if expected([each])[durable.name, "invalid"]
    )
    assert await refusals(fleet) == Counter(
        "scale-refused" if each.subject.endswith(".scale") else "request-refused"
        for each in thrown
        if each.stream == REQUESTS.name and not expected([each])
    )
    unreadable = await fleet.counters("navarch_telemetry_invalid_total")
    assert unreadable == {(): sum(each.stream == TELEMETRY.name for each in thrown)}
    assert fleet.pids == pids
    for path in ("/livez", "/readyz"):
        answers = {name: answer.status_code for name, answer in (await fleet.get(path)).items()}
        assert answers == dict.fromkeys(set(pids) - {"nats-server"}, 200)


async def open_sagas(fleet: Fleet, node: NodeRecord) -> list[str]:
    """Sagas about a node, by their logs."""
    started = await fleet.bus.read(SAGAS.name, subjects.saga_step_wildcard("saga", "started"))
    names = [subjects.parse_saga(each.subject) for each in started]
    return [each.saga for each in names if each and each.saga.startswith(f"replace-{node.node}-")]


async def test_a_replacement_still_works_among_the_garbage(fleet: Fleet) -> None:
    """The next fault after all that is judged, and its node replaced, as if nothing had been."""
    sick, _ = await fleet.active(POOL, 2)
    places = await fleet.places()
    fleet.break_gpu(sick)
    await fleet.replaced(sick.node, places[EVENTS.name])
    assert [each.path for each in fleet.around.orders_about(sick.node)] == ["/cordon", "/drain"]
    await fleet.active(POOL, 2)


async def test_what_does_not_follow_from_a_saga_s_log_has_no_effect(
    fleet: Fleet, client: Client
) -> None:
    """Well-formed entries put into a log by hand neither terminate a node nor tell that one is."""
    sick, _ = await fleet.active(POOL, 2)
    places = await fleet.places()
    fleet.around.busy.add(sick.node)
    fleet.break_gpu(sick)
    await fleet.around.until(lambda: sick.node in fleet.around.asked)
    (saga,) = await open_sagas(fleet, sick)
    stream, thrown = client.jetstream(), set()
    for kind, step in MISPLACED:
        entry = kind(
            id=f"by-hand-{step}", time=datetime.now(UTC), saga=saga, step=step, **about(kind, sick)
        )
        subject = subjects.saga_entry(saga, step, STATUSES[kind])
        thrown.add(("pool-sagas", subject, (await stream.publish(subject, encode(entry))).seq))

    async def buried() -> bool:
        return thrown <= set(await dead_letters(fleet))

    await eventually(buried)
    fleet.around.busy.clear()
    assert (await fleet.replaced(sick.node, places[EVENTS.name])).saga == saga
    # The one that was put there, and the true one after the drain.
    log = await fleet.bus.read(SAGAS.name, subjects.saga_entry(saga, "terminate", "succeeded"))
    assert len(log) == 2
    facts = await fleet.bus.read(
        EVENTS.name, subjects.node_events_of(POOL, sick.node), after=places[EVENTS.name]
    )
    told = [subject.fact for each in facts if (subject := subjects.parse_node(each.subject))]
    assert told == ["fault", "verdict", "cordoned", "drained", "terminated"]
    await fleet.active(POOL, 2)


MISPLACED: tuple[tuple[type[StepEntry], str], ...] = (
    (StepSucceeded, "terminate"),
    (StepSucceeded, "admit"),
    (UndoStarted, "provision"),
    (UndoSucceeded, "cordon"),
    (StepExpired, "provision"),
)


def about(kind: type[StepEntry], node: NodeRecord) -> dict[str, Any]:
    """Inputs that a participant could use, where the kind has some."""
    if kind is UndoStarted:
        return {"inputs": {"pool": POOL, "node": node.node, "reason": "by hand"}}
    return {}


async def test_a_fact_about_another_node_than_its_subject_names_is_dead_lettered(
    fleet: Fleet, client: Client
) -> None:
    """Who may write under one node's subjects cannot have another node replaced."""
    mine, other = await fleet.active(POOL, 2)
    begun = await fleet.bus.last_sequence(SAGAS.name)
    strayed = Verdict(
        id="strayed",
        time=mine.changed_at or mine.admitted_at,
        pool=POOL,
        node=other.node,
        status="unhealthy",
        action="replace",
    )
    subject = subjects.node_event(POOL, mine.node, "verdict")
    stored = await client.jetstream().publish(subject, encode(strayed))

    async def buried() -> bool:
        return ("pool-node-events", subject, stored.seq) in await dead_letters(fleet)

    await eventually(buried)
    assert [each.health for each in await fleet.active(POOL, 2)] == ["healthy", "healthy"]
    assert await fleet.bus.last_sequence(SAGAS.name) == begun


QUERIES = ("nodes", "node", "pools", "sagas", "instances")


@pytest.mark.parametrize("query", QUERIES)
async def test_a_garbled_question_is_answered_with_an_error(fleet: Fleet, query: str) -> None:
    """Whoever asks nonsense is told so, at once."""
    for shape in SHAPES.values():
        if shape:  # nothing at all asks for everything
            answer = await fleet.bus.request(subjects.query(query), shape, timeout_seconds=60)
            assert SERVICE_ERROR in answer.headers
            assert msgspec.json.decode(answer.data)["error"] == "invalid-request"
