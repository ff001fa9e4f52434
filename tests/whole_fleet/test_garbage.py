"""Garbage on every subject is dead-lettered or counted, and work continues."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client

from schemas import subjects
from schemas.dead_letters import DeadLetter, dead_codec
from schemas.headers import SERVICE_ERROR, STREAM_SOURCE
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
from schemas.topology import (
    DEAD,
    EVENTS,
    INTAKE,
    POOL_REQUESTS,
    REQUESTS,
    SAGAS,
    STREAMS,
    TELEMETRY,
)
from services.bus.port import Bus
from tests.support.inprocess import eventually
from tests.support.settling import arriving, busy
from tests.whole_fleet.fleet import Fleet, serving_fleet
from tests.whole_fleet.garbage import (
    POOL,
    SHAPES,
    UNKNOWN,
    consumers_of,
    matches,
    payloads,
    targets,
    uncovered,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

POOLS = f"""
  {POOL}:
    min_nodes: 2
    max_nodes: 3
"""
PUBLISHING_MAX = 16
COUNTERS = "navarch_messages_total"


@dataclass(frozen=True, slots=True)
class Garbage:
    """Records one published piece of garbage."""

    subject: str
    shape: str
    stream: str
    sequence: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Yield a fleet with two nodes."""
    async with serving_fleet(tmp_path_factory.mktemp("garbage"), POOLS) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    """Yield a plain NATS client."""
    connected = await nats.connect(fleet.url)
    yield connected
    await connected.close()


async def publish_garbage(client: Client, at: list[str]) -> list[Garbage]:
    """Publish every shape of garbage on every subject, several at once."""
    stream = client.jetstream()
    room = asyncio.Semaphore(PUBLISHING_MAX)

    async def one(subject: str, shape: str, payload: bytes) -> Garbage:
        async with room:
            stored = await stream.publish(subject, payload, timeout=60)
        return Garbage(subject, shape, stored.stream, stored.seq)

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(one(each, shape, data))
            for each in at
            for shape, data in payloads(each).items()
            if len(data) <= INTAKE.message_bytes_max or not matches(each, INTAKE.subjects)
        ]
    return [each.result() for each in tasks]


def is_stored(subject: str) -> bool:
    """Return whether a stream takes a subject."""
    return any(matches(subject, each.subjects) for each in STREAMS)


async def as_copied(bus: Bus, garbage: list[Garbage]) -> list[Garbage]:
    """The same with the place in EVENTS of what was copied there from INTAKE."""
    await arriving(bus)
    stored = await bus.read(EVENTS.name, subjects.NODE_EVENTS)
    sources = ((each.headers.get(STREAM_SOURCE, "").split(), each.sequence) for each in stored)
    places = {int(source[1]): place for source, place in sources if source}
    return [
        replace(each, stream=EVENTS.name, sequence=places[each.sequence])
        if each.stream == INTAKE.name
        else each
        for each in garbage
    ]


async def settled(fleet: Fleet, wanted: Counter[tuple[str, str]]) -> bool:
    """Return whether every durable has settled its whole stream and counted the garbage."""
    return not await busy(fleet.bus) and (await outcomes(fleet)).total() >= wanted.total()


async def dead_letters(fleet: Fleet) -> Counter[tuple[str, str, int]]:
    """Return durable, subject and sequence of every dead letter."""
    stored = await fleet.bus.read(DEAD.name, subjects.DEAD)
    found = (dead_codec.decode(each.data) for each in stored)
    return Counter(
        (each.durable, each.subject, each.sequence)
        for each in found
        if isinstance(each, DeadLetter)
    )


async def lettered(fleet: Fleet) -> Counter[str]:
    """Return the number of messages of each durable that the dead letters are about."""
    found: Counter[str] = Counter()
    for stored in await fleet.bus.read(DEAD.name, subjects.DEAD):
        letter = dead_codec.decode(stored.data)
        if isinstance(letter, DeadLetter):
            found[letter.durable] += letter.messages
    return found


async def refusals(fleet: Fleet) -> Counter[str]:
    """Return the number of refused requests, by type of event."""
    stored = await fleet.bus.read(EVENTS.name, subjects.POOL_EVENTS)
    events = (pool_codec.decode(each.data) for each in stored)
    return Counter(
        FACTS[type(each)] for each in events if isinstance(each, ScaleRefused | RequestRefused)
    )


async def outcomes(fleet: Fleet) -> Counter[tuple[str, str]]:
    """Return the number of messages that each durable settled as garbage, by outcome."""
    found = await fleet.counters(COUNTERS)
    return Counter(
        {
            (durable, outcome): int(number)
            for (durable, outcome), number in found.items()
            if outcome in ("invalid", "unknown", "dead")
        }
    )


def expected(garbage: list[Garbage]) -> Counter[tuple[str, str]]:
    """The expected outcomes of each durable; garbled requests are refused instead."""
    found: Counter[tuple[str, str]] = Counter()
    for each in garbage:
        for durable in consumers_of(each.subject):
            if durable is not POOL_REQUESTS:
                found[durable.name, "unknown" if each.shape == UNKNOWN else "invalid"] += 1
            elif subjects.parse_pool_request(each.subject) is None or "Not_A" in each.subject:
                found[durable.name, "invalid"] += 1
    return found


async def test_garbage_on_every_subject_is_accounted_for(fleet: Fleet, client: Client) -> None:
    """No process ends, each message is dead-lettered or counted, and the open saga completes."""
    unhealthy, _ = await fleet.active(POOL, 2)
    pids = fleet.pids
    sequences = await fleet.last_sequences()
    fleet.workload.busy.add(unhealthy.node)
    fleet.break_gpu(unhealthy)
    await fleet.workload.until(lambda: unhealthy.node in fleet.workload.asked)
    (saga,) = await open_sagas(fleet, unhealthy)

    at = targets(unhealthy.node, saga)
    # A fact of an unknown name has no stream: who publishes it learns that at once.
    stored = [each for each in (*at, *uncovered(at)) if is_stored(each)]
    published = await publish_garbage(client, stored)
    garbage = await as_copied(fleet.bus, published)
    # Garbage on the open saga's command subjects waits behind the drain under way.
    fleet.workload.busy.clear()
    replaced = await fleet.replaced(unhealthy.node, sequences[EVENTS.name])
    assert replaced.saga == saga
    await eventually(lambda: settled(fleet, expected(garbage)))

    # Delivery is at least once: on a slow machine a message may be settled twice.
    found = await outcomes(fleet)
    assert found.keys() == expected(garbage).keys()
    assert found >= expected(garbage)
    unusable = {
        (durable.name, each.subject, each.sequence)
        for each in garbage
        for durable in consumers_of(each.subject)
        if expected([each])[durable.name, "invalid"]
    }
    # Beyond a sender's quota they are counted, in letters that come a little later.
    everything = Counter(durable for durable, _, _ in unusable)
    await eventually(lambda: accounted(fleet, everything))
    assert set(await dead_letters(fleet)) <= unusable
    assert await refusals(fleet) == Counter(
        "scale-refused" if ".request.scale" in each.subject else "request-refused"
        for each in garbage
        if each.stream == REQUESTS.name and not expected([each])
    )
    unreadable = await fleet.counters("navarch_telemetry_invalid_total")
    assert unreadable == {(): sum(each.stream == TELEMETRY.name for each in garbage)}
    assert fleet.pids == pids
    for path in ("/livez", "/readyz"):
        answers = {name: answer.status_code for name, answer in (await fleet.get(path)).items()}
        assert answers == dict.fromkeys(set(pids) - {"nats-server"}, 200)


async def accounted(fleet: Fleet, wanted: Counter[str]) -> bool:
    """Return whether the dead letters are about so many messages, or more."""
    return await lettered(fleet) >= wanted


async def open_sagas(fleet: Fleet, node: NodeRecord) -> list[str]:
    """Return the sagas about a node that have a log."""
    started = await fleet.bus.read(SAGAS.name, subjects.saga_step_wildcard("saga", "started"))
    names = [subjects.parse_saga(each.subject) for each in started]
    return [each.saga for each in names if each and each.saga.startswith(f"replace-{node.node}-")]


async def test_replacement_works_despite_garbage(fleet: Fleet) -> None:
    """The next fault is judged, and its node replaced, as without garbage."""
    unhealthy, _ = await fleet.active(POOL, 2)
    sequences = await fleet.last_sequences()
    fleet.break_gpu(unhealthy)
    await fleet.replaced(unhealthy.node, sequences[EVENTS.name])
    assert [each.path for each in fleet.workload.orders_about(unhealthy.node)] == [
        "/cordon",
        "/drain",
    ]
    await fleet.active(POOL, 2)


async def test_entries_that_do_not_follow_from_the_log_have_no_effect(
    fleet: Fleet, client: Client
) -> None:
    """Well-formed entries written by a client neither terminate a node nor report that one was."""
    unhealthy, _ = await fleet.active(POOL, 2)
    sequences = await fleet.last_sequences()
    fleet.workload.busy.add(unhealthy.node)
    fleet.break_gpu(unhealthy)
    await fleet.workload.until(lambda: unhealthy.node in fleet.workload.asked)
    (saga,) = await open_sagas(fleet, unhealthy)
    stream, garbage = client.jetstream(), set()
    for kind, step in MISPLACED:
        entry = kind(
            id=f"by-hand-{step}",
            time=datetime.now(UTC),
            saga=saga,
            step=step,
            **about(kind, unhealthy),
        )
        subject = subjects.saga_entry(saga, step, STATUSES[kind])
        garbage.add(("pool-sagas", subject, (await stream.publish(subject, encode(entry))).seq))

    async def buried() -> bool:
        return garbage <= set(await dead_letters(fleet))

    await eventually(buried)
    fleet.workload.busy.clear()
    assert (await fleet.replaced(unhealthy.node, sequences[EVENTS.name])).saga == saga
    # The written entry, and the real one after the drain.
    log = await fleet.bus.read(SAGAS.name, subjects.saga_entry(saga, "terminate", "succeeded"))
    assert len(log) == 2
    facts = await fleet.bus.read(
        EVENTS.name, subjects.node_events_of(POOL, unhealthy.node), after=sequences[EVENTS.name]
    )
    published = [subject.fact for each in facts if (subject := subjects.parse_node(each.subject))]
    assert published == ["fault", "verdict", "cordoned", "drained", "terminated"]
    await fleet.active(POOL, 2)


MISPLACED: tuple[tuple[type[StepEntry], str], ...] = (
    (StepSucceeded, "terminate"),
    (StepSucceeded, "admit"),
    (UndoStarted, "provision"),
    (UndoSucceeded, "cordon"),
    (StepExpired, "provision"),
)


def about(kind: type[StepEntry], node: NodeRecord) -> dict[str, Any]:
    """Inputs that a participant could use, if the type has any."""
    if kind is UndoStarted:
        return {"inputs": {"pool": POOL, "node": node.node, "reason": "by hand"}}
    return {}


async def test_event_about_another_node_than_its_subject_is_dead_lettered(
    fleet: Fleet, client: Client
) -> None:
    """A client that may write under one node's subjects cannot have another node replaced."""
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
async def test_garbled_query_is_answered_with_an_error(fleet: Fleet, query: str) -> None:
    """The error is answered at once, so that the caller does not wait for its time-out."""
    for shape in SHAPES.values():
        if shape:  # an empty query asks for everything
            answer = await fleet.bus.request(subjects.query(query), shape, timeout_seconds=60)
            assert SERVICE_ERROR in answer.headers
            assert msgspec.json.decode(answer.data)["error"] == "invalid-request"
