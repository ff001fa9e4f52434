"""One replacement is one trace, from the fault to the replaced node, over all services."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from schemas import subjects
from schemas.headers import TRACEPARENT
from schemas.topology import DURABLES, EVENTS, SAGAS
from services.bus.port import Stored
from tests.whole_fleet.fleet import Fleet, serving_fleet
from tests.whole_fleet.garbage import matches
from tests.whole_fleet.workload_system import Span

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

POOLS = """
  traced:
    min_nodes: 1
    max_nodes: 2
"""
SERVICES = {"health-monitor", "pool-manager", "notifier", "provisioner", "metrics"}
ARRIVAL = ("registered", "boot-checked", "verdict")
"""Facts that a new node's agent begins itself: stories of their own."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Yield a fleet with one node."""
    async with serving_fleet(tmp_path_factory.mktemp("traced"), POOLS) as running:
        yield running


def trace_of(stored: Stored) -> str:
    """The trace that a message belongs to."""
    return stored.headers[TRACEPARENT].split("-")[1]


def span_of(stored: Stored) -> str:
    """The span in which a message was published."""
    return stored.headers[TRACEPARENT].split("-")[2]


async def replacement_messages(
    fleet: Fleet, sequences: dict[str, int], new_node: str
) -> list[Stored]:
    """Return the replacement's events and saga entries, without those of the new node's agent."""
    found: list[Stored] = []
    for stream, wildcards in (
        (EVENTS.name, (subjects.NODE_EVENTS, subjects.POOL_EVENTS)),
        (SAGAS.name, (subjects.SAGAS,)),
    ):
        for wildcard in wildcards:
            found += await fleet.bus.read(stream, wildcard, after=sequences[stream])
    about_new = {subjects.node_event("traced", new_node, fact) for fact in ARRIVAL}
    return [each for each in found if each.subject not in about_new]


async def test_replacement_is_one_trace(
    fleet: Fleet,
) -> None:
    """Each durable's processing of each message is a span of the fault's trace, with a parent."""
    (old,) = await fleet.active("traced", 1)
    sequences = await fleet.last_sequences()
    fleet.break_gpu(old)
    replaced = await fleet.replaced(old.node, sequences[EVENTS.name])
    messages = await replacement_messages(fleet, sequences, replaced.new_node)
    fault = next(each for each in messages if each.subject.endswith(".event.fault"))
    assert [each.subject for each in messages if trace_of(each) != trace_of(fault)] == []

    handled = {
        (durable.name, each.subject)
        for each in messages
        for durable in DURABLES
        if matches(each.subject, durable.filters)
    }
    # Five exporters deliver spans in any order; wait for all expected ones.
    await fleet.workload.until(lambda: handled <= {handling(each) for each in fleet.workload.spans})
    spans = [each for each in fleet.workload.spans if each.trace == trace_of(fault)]
    assert handled - {handling(each) for each in spans} == set()
    assert {each.service for each in spans} == SERVICES
    known = {each.span for each in spans} | {span_of(fault)}
    assert [each for each in spans if each.parent not in known] == []
    for order in fleet.workload.orders:
        assert order.headers[TRACEPARENT].split("-")[1] == trace_of(fault)


def handling(span: Span) -> tuple[str, str]:
    """Return the durable and the subject that it processed in a span."""
    return span.name.split(" ")[0], span.subject
