"""The client of the command line is tested over a real server."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import pytest

from schemas import subjects
from schemas.fleet_queries import Query
from schemas.messages import encode
from schemas.node_events import Cordoned, Lost
from schemas.operator_requests import NodeRequest, ScaleRequest
from schemas.pool_events import RequestAccepted, Scaled, ScaleRefused
from schemas.saga_log_entries import SagaDone, SagaStarted, StepStarted, StepSucceeded
from schemas.saga_params import SagaParams
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.bus.protocol.ordered_pages import PAGE_MESSAGES_MAX
from services.fleet_client.fleet_client import FleetClient, require_accepted
from services.fleet_client.node_timeline import timeline_rows
from services.primitives.errors import AnswerError, NavarchError
from services.saga.participant import append

NOW = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)


async def test_an_answer_of_many_pages_is_complete(manager: NatsBus) -> None:
    """Pages are requested until the last one."""
    nodes = await FleetClient(manager).nodes(Query())
    assert [each.id for each in nodes] == ["training-1", "training-2", "training-3"]


async def test_a_refused_query_gives_the_reason(manager: NatsBus) -> None:
    """The error has the service's reason."""
    with pytest.raises(AnswerError, match="no node 'n9' in this fleet"):
        await FleetClient(manager).node("n9")


async def test_a_query_without_a_responder_names_the_missing_service(bus: NatsBus) -> None:
    """The error names the pool-manager where none answers."""
    with pytest.raises(NavarchError, match="is the pool-manager running"):
        await FleetClient(bus).pages("nodes", Query())


async def test_a_request_is_answered_by_its_own_event(manager: NatsBus) -> None:
    """Each of several concurrent requests gets the answer with its own ID."""
    fleet = FleetClient(manager)
    scaled, refused, cordoned = await asyncio.gather(
        fleet.request("training", "scale", ScaleRequest(nodes=2)),
        fleet.request("training", "scale", ScaleRequest(nodes=99)),
        fleet.request("training", "cordon", NodeRequest(node="training-1")),
    )
    assert isinstance(scaled, Scaled)
    assert scaled.nodes == 2
    assert isinstance(refused, ScaleRefused)
    assert isinstance(cordoned, RequestAccepted)
    with pytest.raises(AnswerError, match=r"refused \(above-maximum\): 99 is above max_nodes 4"):
        require_accepted(refused)


async def test_events_start_in_the_past_and_continue(bus: NatsBus) -> None:
    """Stored events come first, then new ones; events about other nodes are left out."""
    lost = Lost(id="l1", time=NOW, pool="training", node="n1")
    other = Lost(id="l2", time=NOW, pool="training", node="n2")
    cordoned = Cordoned(id="c1", time=NOW, pool="training", node="n1")
    start = datetime.now(UTC)
    await bus.publish(subjects.node_event("training", "n1", "lost"), encode(lost))
    await bus.publish(subjects.node_event("training", "n2", "lost"), encode(other))
    found: list[str] = []
    async with asyncio.timeout(60):
        async for batch in FleetClient(bus).follow_events(pool="training", node="n1", since=start):
            found += [stored.subject.rsplit(".", 1)[1] for stored in batch]
            if len(found) == 1:
                subject = subjects.node_event("training", "n1", "cordoned")
                await bus.publish(subject, encode(cordoned))
            else:
                break
    assert found == ["lost", "cordoned"]


async def test_events_end_with_the_newest_where_they_are_not_followed(bus: NatsBus) -> None:
    """`navarch events --since 1m` waited for ever, also where nothing was stored."""
    start = datetime.now(UTC)
    fleet = FleetClient(bus)

    async def found(node: str) -> list[Stored]:
        batches = fleet.follow_events(pool="", node=node, since=start, follow=False)
        return [each async for batch in batches for each in batch]

    async with asyncio.timeout(60):
        assert await found("") == []
        lost = Lost(id="l1", time=NOW, pool="training", node="n1")
        await bus.publish(subjects.node_event("training", "n1", "lost"), encode(lost))
        assert [len(await found(node)) for node in ("", "n1", "n2")] == [1, 1, 0]


async def test_stored_events_are_read_in_batches_and_in_order(bus: NatsBus) -> None:
    """2,500 facts and 25 events of their pool take four rounds of reads, not one per event."""
    start = datetime.now(UTC)
    for number in range(2500):
        fault = Lost(id=f"l{number}", time=NOW, pool="training", node=f"n{number % 10}")
        await bus._client.publish(  # without waiting for an answer
            subjects.node_event("training", fault.node, "lost"), encode(fault)
        )
        if number % 100 == 0:
            scaled = Scaled(id=f"s{number}", time=NOW, pool="training", nodes=number, previous=0)
            await bus.publish(subjects.pool_event("training", "scaled"), encode(scaled))
    reads: list[int] = []

    class CountingBus:
        async def read_batch(self, *args: Any, **named: Any) -> list[Stored]:
            page = await bus.read_batch(*args, **named)
            reads.append(len(page))
            return page

        def __getattr__(self, name: str) -> Any:
            return getattr(bus, name)

    sequences: list[int] = []
    events = FleetClient(CountingBus()).follow_events(pool="training", node="", since=start)  # type: ignore[arg-type]
    async with asyncio.timeout(60), aclosing(events):
        async for batch in events:
            sequences += [stored.sequence for stored in batch]
            if len(sequences) == 2525:
                break
    assert list(range(1, 2526)) == sequences
    assert len(reads) == 2 * 3
    assert max(reads) == PAGE_MESSAGES_MAX


async def _replacement(bus: NatsBus) -> str:
    saga = "replace-n1-1"
    names = {"saga": saga, "time": NOW}
    params = SagaParams(pool="training", node="n1", new_node="n2", reason="XID 79")
    sequence = 0
    for entry in (
        SagaStarted(id="s1", kind="replace", params=params, **names),
        StepStarted(id="s2", step="cordon", **names),
        StepSucceeded(id="s3", step="cordon", **names),
        SagaDone(id="s4", **names),
    ):
        sequence = await append(bus, entry, sequence, {})
    return saga


async def test_a_saga_is_followed_to_its_end(bus: NatsBus) -> None:
    """Following ends with the entry that ends the saga."""
    saga = await _replacement(bus)
    async with asyncio.timeout(60):
        subjects_ = [
            each.subject async for batch in FleetClient(bus).follow_saga(saga) for each in batch
        ]
    assert len(subjects_) == 4
    assert subjects_[-1] == subjects.saga_entry(saga, "saga", "done")


@pytest.mark.parametrize("node", ["n1", "n2"])
async def test_the_history_of_both_nodes_has_the_whole_replacement(bus: NatsBus, node: str) -> None:
    """A history has the events about the node and every entry of its sagas, and nothing else."""
    await _replacement(bus)
    for name in ("n1", "n2", "n3"):
        lost = Lost(id=f"lost-{name}", time=NOW, pool="training", node=name)
        await bus.publish(subjects.node_event("training", name, "lost"), encode(lost))
    moments = timeline_rows(await FleetClient(bus).node_history(node))
    assert [each.title for each in moments] == [
        "saga started",
        "cordon started",
        "cordon succeeded",
        "saga done",
        "lost",
    ]
    assert moments[-1].subject == f"training/{node}"
