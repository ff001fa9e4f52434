"""A simulated workload system: a real HTTP server that records its requests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from schemas import subjects
from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.saga_log_entries import (
    SagaEntry,
    SagaStarted,
    SagaUnwinding,
    StepStarted,
    UndoStarted,
    saga_codec,
)
from schemas.saga_params import SagaParams
from schemas.settings import PluginSettings, Settings
from schemas.topology import NODES, SAGAS
from services.bus.nats.nats_bus import NatsBus
from services.notifier.service import build
from services.primitives.clock import SystemClock
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.process import Context
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing
from services.saga.participant import append
from tests.support.serving import serving


@dataclass(slots=True)
class Receiver:
    """The requests that the workload system received, and its answers."""

    url: str = ""
    orders: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Event and body of every order, in order of arrival."""
    keys: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    status_headers: list[dict[str, str]] = field(default_factory=list)
    status_requests: list[str] = field(default_factory=list)
    """Node of every status request."""
    drained: bool = False
    answers: list[Response] = field(default_factory=list)
    """Answers to the next requests; then 200."""
    hold: asyncio.Event | None = None
    """Until this event is set, requests are not answered."""
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the requests is true."""
        async with asyncio.timeout(60), self.arrived:
            await self.arrived.wait_for(condition)

    async def order(self, request: Request) -> Response:
        """Record an order."""
        body = await request.json()
        self.orders.append((request.url.path, body))
        self.keys.append(request.headers.get("idempotency-key", ""))
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.body())
        return await self._answer(PlainTextResponse("accepted"))

    async def status(self, request: Request) -> Response:
        """Answer whether a node is drained."""
        self.status_requests.append(request.query_params["node_id"])
        self.status_headers.append(dict(request.headers))
        drained = "true" if self.drained else "false"
        body = f'{{"drained": {drained}, "message": "2 jobs"}}'
        return await self._answer(Response(body, media_type="application/json"))

    async def _answer(self, default: Response) -> Response:
        answer = self.answers.pop(0) if self.answers else default
        async with self.arrived:
            self.arrived.notify_all()
        if self.hold is not None:
            await self.hold.wait()
        return answer


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """Provide the workload system, on a free port."""
    receiver = Receiver()
    routes = [
        Route("/status", receiver.status),
        Route("/{event}", receiver.order, methods=["POST"]),
    ]
    async with serving(Starlette(routes=routes)) as receiver.url:
        yield receiver
        if receiver.hold is not None:
            receiver.hold.set()


@dataclass(slots=True)
class Sagas:
    """Appends commands as the coordinator would, and waits for their results."""

    bus: NatsBus
    last: dict[str, int] = field(default_factory=dict)

    async def command(
        self,
        saga: str,
        step: str,
        *,
        deadline: datetime | None = None,
        undo: bool = False,
        wait: bool = True,
    ) -> int:
        """Start a step of a saga about node `training-1`, or its undo."""
        now = datetime.now(UTC)
        if saga not in self.last:
            node = NodeRecord(pool="training", node="training-1", state="active")
            await self.bus.put(NODES, node_key("training", "training-1"), encode(node))
            await self._append(
                SagaStarted(
                    id=f"{saga}.started",
                    time=now,
                    saga=saga,
                    kind="replace",
                    params=SagaParams(pool="training", node="training-1"),
                )
            )
        inputs = {"pool": "training", "node": "training-1", "reason": "XID 79", "wait": wait}
        entry: SagaEntry
        if undo:
            await self._append(
                SagaUnwinding(
                    id=f"{saga}.unwinding", time=now, saga=saga, step=step, reason="provision"
                )
            )
            entry = UndoStarted(
                id=f"{saga}.{step}.undo-started", time=now, saga=saga, step=step, inputs=inputs
            )
        else:
            entry = StepStarted(
                id=f"{saga}.{step}.started",
                time=now,
                saga=saga,
                step=step,
                inputs=inputs,
                deadline=deadline,
            )
        return await self._append(entry)

    async def _append(self, entry: SagaEntry) -> int:
        expected = self.last.get(entry.saga, 0)
        sequence = await append(self.bus, entry, expected, {})
        self.last[entry.saga] = sequence
        return sequence

    async def result(self, saga: str, step: str) -> SagaEntry:
        """Wait for the entry that ends a step."""
        settling = {"succeeded", "failed", "undo-succeeded", "undo-failed"}
        after = self.last[saga]
        async with asyncio.timeout(60):
            log = self.bus.follow(SAGAS.name, [subjects.saga_tree(saga)], "all")
            async with aclosing(log):
                async for stored in log:
                    parsed = subjects.parse_saga(stored.subject)
                    assert parsed is not None
                    if stored.sequence <= after or parsed.status not in settling:
                        continue
                    assert parsed.step == step
                    self.last[saga] = stored.sequence
                    entry = saga_codec.decode(stored.data)
                    assert isinstance(entry, SagaEntry)
                    return entry
        raise AssertionError("the stream ended")


@pytest.fixture
def sagas(bus: NatsBus) -> Sagas:
    """Provide the coordinator's side."""
    return Sagas(bus)


@pytest.fixture
def notifier(bus: NatsBus, receiver: Receiver):
    """Run the notifier service on a bus, as a process would; a second one is a second replica."""

    @asynccontextmanager
    async def run(**options: Any) -> AsyncIterator[None]:
        urls = {
            "cordon_url": f"{receiver.url}/cordon",
            "uncordon_url": f"{receiver.url}/uncordon",
            "drain_url": f"{receiver.url}/drain",
            "drain_status_url": f"{receiver.url}/status",
        }
        context = Context(
            name="notifier",
            replica="notifier-test",
            bus=bus,
            clock=SystemClock(),
            settings=Settings(notifier=PluginSettings(type="webhook", options=urls | options)),
            settings_file=None,
            instruments=Instruments(),
            tracing=Tracing("notifier"),
        )
        service = await build(context)
        tasks = [
            asyncio.create_task(
                ConsumerLoop(bus, each, context.clock, context.instruments, context.tracing).run()
            )
            for each in service.consumers
        ] + [asyncio.create_task(each()) for each in service.tasks]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in ends] == [asyncio.CancelledError] * len(tasks)
            assert service.close is not None
            await service.close()
            context.tracing.close()

    return run
