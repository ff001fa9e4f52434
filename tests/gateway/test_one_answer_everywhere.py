"""Every surface gives the same answer to a request: bus, HTTP, the assistants' tools, the shell.

A real pool-manager decides, over the in-memory bus; its pools are such that most codes occur.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, get_args

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.duration import decode_hook
from schemas.enums import Refusal
from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.operations import CHANGE, CHANGES
from schemas.operator_requests import CompletedRequest
from schemas.pool_events import RequestRefused, ScaleRefused
from schemas.pool_records import PoolRecord, pool_key
from schemas.refusal_catalogue import CATALOGUE, REFUSALS, STORED, exit_code
from schemas.settings import BudgetSpec, PluginSettings, PoolSpec, Settings
from schemas.topology import EVENTS, NODES, POOLS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.fleet_client.fleet_client import FleetClient, RequestAnswer, UnansweredError
from services.gateway.authentication import Access
from services.gateway.authenticators.chain import AuthenticatorChain
from services.gateway.caller_rate import CallerRate
from services.gateway.event_streams import EventRelay, EventStreams
from services.gateway.http_app import http_app
from services.mcp_server.change_plans import ChangePlans
from services.mcp_server.change_tools import plan_change
from services.mcp_server.tool_arguments import PlannedChange
from services.mcp_server.tool_caller import BusCaller, ToolAccess
from services.pool_manager.service import build
from services.primitives.clock import SystemClock
from services.primitives.errors import AnswerError, NavarchError
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.process import Context
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing
from tests.golden import refusals_table

REQUESTED: Final = {
    "training": PoolSpec(min_nodes=1, max_nodes=6, budget=BudgetSpec(max_unavailable=2)),
    "adopted": PoolSpec(min_nodes=0, max_nodes=4, nodes="adopted"),
    "named": PoolSpec(min_nodes=0, max_nodes=4, workload_names="training-[001-004]"),
    "leaving": PoolSpec(min_nodes=0, max_nodes=0),
}
"""Pool -> its settings; each has three nodes, of which the second is cordoned."""
ABOUT: Final = {
    "pool": st.sampled_from((*REQUESTED, "gone")),
    "node": st.sampled_from([f"{pool}-{n}" for pool in (*REQUESTED, "gone") for n in (1, 2, 3)]),
    "saga": st.sampled_from(("drain-training-1-1", "replace-gone-1-1")),
}
BODY: Final = {
    "nodes": st.integers(0, 8),
    "reason": st.sampled_from(("fans", "maintenance of the rack")),
    "mode": st.sampled_from(("", "wait", "deadline", "immediate")),
    "timeout": st.sampled_from(("", "10m")),
    "for": st.sampled_from(("2h", "9000h")),
    "spec": st.sampled_from(({"max_nodes": 2}, {"colour": "red"}, {})),
}


@st.composite
def drawn(draw: st.DrawFn) -> tuple[str, str, dict[str, Any], bool]:
    """Draw a verb, what it is about, the body that a caller sends, and whether on the bus."""
    change = CHANGE[draw(st.sampled_from([each.name for each in CHANGES if each.path]))]
    assert change.body is not None
    fields = [each.encode_name for each in msgspec.structs.fields(change.body)]
    body = {each: draw(BODY[each]) for each in fields}
    return change.name, draw(ABOUT[change.subject]), body, draw(st.booleans())


class Fleet:
    """Holds a pool-manager, a gateway and an assistant on one bus."""

    def __init__(self, bus: MemoryBus, http: httpx.AsyncClient) -> None:
        """Ask over `bus` and over `http`."""
        self.client = FleetClient(bus)
        self.http = http
        self.assistant = ToolAccess(
            self.client, BusCaller(self.client), ChangePlans(b"k"), lambda: datetime.now(UTC)
        )

    async def over_http(self, verb: str, about: str, body: Any, *, dry_run: bool) -> str:
        """Return the code of a refusal; empty: accepted; the status of any other problem."""
        change = CHANGE[verb]
        path = change.path.replace(f"{{{change.subject}}}", about)
        url = f"/api/v1{path}" + ("?dry_run=true" if dry_run else "")
        answer = await self.http.post(url, json=body)
        found = answer.json()
        if answer.status_code == 200:
            return (found["refusal"] or "") if dry_run else ""
        return found.get("refusal") or str(answer.status_code)

    async def planned(self, verb: str, about: str, body: dict[str, Any]) -> str | None:
        """Return what an assistant is answered; None where it cannot plan this."""
        if not CHANGE[verb].planned:
            return None
        given = {"verb": verb, "name": about, **body}
        try:
            answer = await plan_change(self.assistant, msgspec.convert(given, PlannedChange))
        except NavarchError as error:
            return "404" if "there is no" in str(error) else "400"
        assert bool(answer.token) == answer.plan.accepted
        return answer.plan.refusal or ""

    async def over_the_bus(self, verb: str, about: str, body: dict[str, Any]) -> str:
        """Return the same by a request on the bus, as the shell makes it."""
        change = CHANGE[verb]
        fields = {name: each for name, each in body.items() if each != ""}
        pool = about
        if change.subject in ("node", "saga"):
            fields = {change.subject: about, **fields}
            pool = next((each for each in REQUESTED if f"{each}-" in about), "gone")
        try:
            msgspec.convert(fields, change.request, dec_hook=decode_hook)
        except msgspec.ValidationError:
            return "400"
        answer = await self.publish(pool, verb, fields)
        code = answer.refusal if isinstance(answer, RequestRefused | ScaleRefused) else ""
        return "404" if code.startswith("unknown-") else code

    async def publish(self, pool: str, verb: str, fields: dict[str, Any]) -> RequestAnswer:
        """Publish a request as it is written, and return its answer."""
        after = await self.client.bus.last_sequence(EVENTS.name)
        data = msgspec.json.encode({**fields, "request": "mine"})
        await self.client.bus.publish(subjects.pool_request(pool, verb), data)
        return await self.client.answer(pool, "mine", after)


@asynccontextmanager
async def fleet() -> AsyncIterator[Fleet]:
    """Run a fleet in this process."""
    clock = SystemClock()
    server = MemoryServer(clock)
    bus = MemoryBus(server, PerfectLink())
    await set_up(bus, clock, replicas=1)
    for pool, spec in REQUESTED.items():
        removing = "request-1" if pool == "leaving" else ""
        record = PoolRecord(name=pool, spec=spec, desired=3, applied="request-1", removing=removing)
        await bus.put(POOLS, pool_key(pool), encode(record))
        for number in (1, 2, 3):
            node = NodeRecord(
                pool=pool, node=f"{pool}-{number}", state="active", cordoned=number == 2
            )
            await bus.put(NODES, node_key(pool, node.node), encode(node))
    context = Context(
        name="pool-manager",
        replica="pool-manager-1",
        bus=bus,
        clock=clock,
        settings=Settings(providers={"local": PluginSettings(type="local")}),
        settings_file=None,
        instruments=Instruments(),
        tracing=Tracing("pool-manager"),
    )
    service = await build(context)
    await bus.serve("pool-manager", service.description, service.endpoints)
    loops = [
        ConsumerLoop(bus, each, clock, context.instruments, context.tracing).run
        for each in service.consumers
    ]
    running = [asyncio.ensure_future(each()) for each in (*service.tasks, *loops)]
    access = Access(AuthenticatorChain({}, {}, clock.now), CallerRate(60_000), clock.now)
    registry = CollectorRegistry()
    streams = EventStreams(EventRelay(bus, clock), 8, clock.now, registry)
    app = http_app(bus, FleetClient(bus, user="gateway"), access, streams, clock, registry)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield Fleet(bus, http)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await bus.close()
    server.close()


async def compare(asked: list[tuple[str, str, dict[str, Any], bool]]) -> None:
    """Ask each on every surface, and at last for good: over HTTP, or on the bus as the shell."""
    async with fleet() as found:
        for verb, about, body, on_bus in asked:
            rehearsed = await found.over_http(verb, about, body, dry_run=True)
            planned = await found.planned(verb, about, body)
            ask = found.over_the_bus if on_bus else partial(found.over_http, dry_run=False)
            requested = await ask(verb, about, body)
            assert planned in (rehearsed, None), (verb, about, body)
            assert rehearsed == requested, (verb, about, body)
            assert rehearsed in ("", "400", "404", *CHANGE[verb].refusals), (verb, rehearsed)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=st.lists(drawn(), min_size=4, max_size=20))
def test_a_request_gets_the_same_answer_everywhere(
    asked: list[tuple[str, str, dict[str, Any], bool]],
) -> None:
    """The dry run, the assistant's plan and the request itself say the same code."""
    asyncio.run(compare(asked))


@pytest.mark.parametrize(
    ("pool", "nodes", "code"),
    [
        ("training", 3, ""),
        ("training", 9, "above-maximum"),
        ("training", 0, "below-minimum"),
        ("adopted", 1, "wrong-state"),
        ("named", 1, "wrong-state"),
        ("leaving", 0, "wrong-state"),
    ],
)
async def test_an_assistant_gets_no_token_for_a_scale_that_would_be_refused(
    pool: str, nodes: int, code: str
) -> None:
    """The plan is the dry run of the pool-manager, which knows pools of every kind."""
    async with fleet() as found:
        asked = PlannedChange(verb="scale", name=pool, nodes=nodes)
        answer = await plan_change(found.assistant, asked)
    assert (answer.plan.refusal or "") == code
    assert bool(answer.token) == (code == "")
    assert answer.plan.nodes == (nodes if code == "" else None)


@pytest.mark.parametrize("verb", [each.name for each in CHANGES])
async def test_an_example_of_the_table_is_accepted_as_it_is_published(verb: str) -> None:
    """The examples are those of docs/events.md; no saga here has their saga's name."""
    change = CHANGE[verb]
    pool = "new" if change.creates else "named" if verb in ("resume", "suspend") else "training"
    async with fleet() as found:
        answer = await found.publish(pool, verb, change.example)
    code = answer.refusal if isinstance(answer, RequestRefused | ScaleRefused) else ""
    assert code == ("unknown-saga" if change.subject == "saga" else ""), answer


REFUSED_BY: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "invalid-request": ("apply", "new", {"spec": {"colour": "red"}}),
    "unknown-verb": ("dance", "training", {}),
    "unknown-pool": ("scale", "gone", {"nodes": 1}),
    "unknown-node": ("drain", "training", {"node": "training-9"}),
    "unknown-saga": ("cancel", "training", {"saga": "drain-training-1-9"}),
    "above-maximum": ("scale", "training", {"nodes": 9}),
    "below-minimum": ("scale", "training", {"nodes": 0}),
    "saga-open": ("drain", "training", {"node": "training-3"}),
    "budget-exhausted": ("drain", "tight", {"node": "tight-1"}),
    "wrong-state": ("scale", "adopted", {"nodes": 1}),
    "held": ("drain", "training", {"node": "training-1"}),
    "observing": ("replace", "observed", {"node": "observed-1"}),
    "superseded": ("scale", "late", {"nodes": 2}),
}
"""Code -> a request that is refused with it, in the fleet of the test below."""


async def put_refusing(found: Fleet) -> None:
    """Make pools and nodes of which requests are refused, and begin what keeps others back."""
    now = datetime.now(UTC)
    later = CompletedRequest(
        sequence=1_000_000, at=now + timedelta(hours=1), verb="scale", about="size"
    )
    specs = {
        "tight": PoolSpec(min_nodes=0, max_nodes=4, budget=BudgetSpec(max_unavailable=0)),
        "observed": PoolSpec(min_nodes=0, max_nodes=4, mode="observe"),
        "late": PoolSpec(min_nodes=0, max_nodes=4),
    }
    bus = found.client.bus
    for pool, spec in specs.items():
        done = (later,) if pool == "late" else ()
        record = PoolRecord(name=pool, spec=spec, desired=1, completed_requests=done)
        await bus.put(POOLS, pool_key(pool), encode(record))
        node = NodeRecord(pool=pool, node=f"{pool}-1", state="active")
        await bus.put(NODES, node_key(pool, node.node), encode(node))
    held = {"node": "training-1", "for": "2h", "reason": "bisecting"}
    for verb, body in (("drain", {"node": "training-3"}), ("hold", held)):
        assert not hasattr(await found.publish("training", verb, body), "refusal")


async def test_every_code_of_the_catalogue_occurs_on_the_bus() -> None:
    """A code that no request is answered with would be no more than a word."""
    assert REFUSALS.keys() == set(get_args(Refusal))
    # A node that is not active has a saga within a moment: test_terminate_requests.py has one.
    assert REFUSED_BY.keys() == REFUSALS.keys() - {"not-active"}
    assert {each for change in CHANGES for each in change.refusals} == {*REFUSALS} - {
        "unknown-verb"
    }
    async with fleet() as found:
        await put_refusing(found)
        for code, (verb, pool, body) in REFUSED_BY.items():
            answer = await found.publish(pool, verb, body)
            assert getattr(answer, "refusal", "") == code, (code, answer)


async def test_a_problem_has_the_code_and_the_remedy_of_the_catalogue() -> None:
    """The code is the fleet's where it decided, and else that of the status."""
    async with fleet() as found:
        for path, body, code in (
            ("/pools/adopted/scale", {"nodes": 1}, "wrong-state"),
            ("/pools/training/scale", {"nodes": -1}, "invalid-call"),
            ("/pools/gone/scale", {"nodes": 1}, "unknown-name"),
        ):
            problem = (await found.http.post(f"/api/v1{path}", json=body)).json()
            known = CATALOGUE[code]
            assert (problem["code"], problem["status"]) == (code, known.status)
            assert problem.get("refusal", "") == (code if code in REFUSALS else "")
    assert exit_code(UnansweredError("no answer")) == STORED
    assert exit_code(AnswerError("refused", "held")) == exit_code(NavarchError("x")) == 1


def test_the_page_has_the_catalogue_as_it_is() -> None:
    """`python -m tests.golden` writes it."""
    written = refusals_table.PAGE.read_text(encoding="utf-8")
    assert written == refusals_table.page(written)
