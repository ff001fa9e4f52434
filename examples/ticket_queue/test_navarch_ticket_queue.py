"""Runs Navarch's suite for notifiers against a ticket system that the tests drive."""

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
import pytest_asyncio
import uvicorn
from navarch.services.notifier.conformance import NotifierConformance
from navarch.services.notifier.workload.workload_notifier import (
    NodeReference,
    StepFailure,
    WorkloadOrder,
)
from navarch.services.primitives.clock import SystemClock
from navarch_ticket_queue import TicketQueue
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TIMEOUT_SECONDS = 2.0
NODE = NodeReference(pool="training", node="n1")
ORDER = WorkloadOrder(
    node=NODE, reason="xid-79", key="replace-n1-1/drain", deadline=datetime(2030, 1, 7, tzinfo=UTC)
)
Mode = Literal["well", "never", "with-failures"]


class Site:
    """A ticket system, with what `navarch.services.notifier.conformance.WorkloadSite` lists."""

    reversible = True

    def __init__(self) -> None:
        self.url = ""
        self.jobs: dict[str, list[str]] = {f"n{number}": [] for number in range(1, 21)}
        self.tickets: dict[str, dict[str, Any]] = {}
        self.status = 200
        self._mode: Mode = "well"
        self._garbage: bytes | None = None

    @property
    def app(self) -> Starlette:
        """Return its HTTP API."""
        return Starlette(
            routes=[
                Route("/tickets/{id}", self.write, methods=["PUT"]),
                Route("/tickets/{id}", self.remove, methods=["DELETE"]),
                Route("/hosts/query", self.hosts, methods=["POST"]),
            ]
        )

    async def write(self, request: Request) -> Response:
        """Open a ticket or change it; `end` ends the jobs of its host."""
        ticket, ticket_id = await request.json(), request.path_params["id"]
        if ticket["host"] not in self.jobs:
            return await self._answered({"error": "no such host"}, 404)
        if request.headers.get("if-none-match") == "*" and ticket_id in self.tickets:
            return await self._answered({}, 412)
        if self._mode == "well" and self.status == 200:
            self.tickets[ticket_id] = ticket
            if ticket["wanted"] == "end":
                self.leave(ticket["host"])
        return await self._answered({}, self.status)

    async def remove(self, request: Request) -> Response:
        """Close a ticket."""
        if request.path_params["id"] not in self.tickets:
            return await self._answered({"error": "no such ticket"}, 404)
        if self._mode == "well":
            del self.tickets[request.path_params["id"]]
        return await self._answered({}, 200)

    async def hosts(self, request: Request) -> Response:
        """Return the tickets and jobs of each host; null for one that is not there."""
        names = (await request.json())["names"]
        return await self._answered({"hosts": {each: self._host(each) for each in names}}, 200)

    def make(self) -> TicketQueue:
        """Make a notifier, as a replica does."""
        options = TicketQueue.Options(url=self.url, timeout_seconds=TIMEOUT_SECONDS)
        return TicketQueue(options=options, clock=SystemClock())

    def place(self, node: str) -> None:
        """Have a job on a node."""
        self.jobs[node] = ["4711"]

    def leave(self, node: str) -> None:
        """End the jobs on a node."""
        self.jobs[node] = []

    def is_cordoned(self, node: str) -> bool:
        """Return whether any ticket holds the node."""
        return any(each["host"] == node for each in self.tickets.values())

    def cordon_by_another(self, node: str) -> bool:
        """Open a ticket as an administrator does."""
        self.tickets[f"ada.{node}"] = {"host": node, "wanted": "hold"}
        return True

    def asked(self, node: str) -> int:
        """Return no number of checkpoints: there are none."""
        del node
        return 0

    def announce(self, node: str, at: datetime) -> bool:
        """Announce no checkpoint."""
        del node, at
        return False

    def answer(self, mode: Mode, garbage: bytes | None = None) -> None:
        """Set how the system answers from now on."""
        self._mode, self._garbage = mode, garbage

    def _host(self, name: str) -> dict[str, list[str]] | None:
        if name not in self.jobs:
            return None
        tickets = [key for key, each in self.tickets.items() if each["host"] == name]
        return {"tickets": tickets, "jobs": self.jobs[name]}

    async def _answered(self, body: object, status: int) -> Response:
        if self._mode == "never":
            await asyncio.Event().wait()
        if self._mode == "with-failures":
            return Response("<h1>Bad Gateway</h1>", 502)
        return Response(self._garbage) if self._garbage is not None else JSONResponse(body, status)


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    """Serve a ticket system with twenty hosts."""
    made = Site()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = uvicorn.Config(made.app, log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    yield made
    server.should_exit = server.force_exit = True
    await running


class TestTicketQueue(NotifierConformance):
    """Twenty nodes, with work on those that a test names."""

    @pytest.fixture
    def site(self, site: Site) -> Site:
        """Return the ticket system."""
        return site


async def test_a_late_cordon_takes_no_drain_back(site: Site) -> None:
    """One ticket has the last that was wanted, why, and until when."""
    notifier = site.make()
    for step in (notifier.cordon, notifier.drain, notifier.cordon):
        await step(ORDER)
    assert site.tickets == {
        "navarch.n1": {
            "host": "n1",
            "wanted": "leave",
            "reason": "xid-79",
            "until": "2030-01-07T00:00:00+00:00",
        }
    }
    await notifier.close()


async def test_an_evicted_node_is_drained(site: Site) -> None:
    """Work that is left is ended, and its node may be terminated."""
    site.place("n1")
    notifier = site.make()
    await notifier.drain(ORDER)
    before = (await notifier.workloads([NODE]))["n1"]
    assert (before.drained, [each.id for each in before.running]) == (False, ["4711"])
    await notifier.evict(ORDER)
    assert (await notifier.workloads([NODE]))["n1"].drained
    await notifier.close()


async def test_a_refusal_fails_the_step_and_says_what_to_do(site: Site) -> None:
    """No repetition helps where the ticket system does not allow Navarch its tickets."""
    notifier, site.status = site.make(), 403
    with pytest.raises(StepFailure, match="refuses /tickets/") as raised:
        await notifier.cordon(ORDER)
    assert "rights" in raised.value.remedy
    await notifier.close()


async def test_a_host_that_is_left_out_is_not_drained(site: Site) -> None:
    """Only a host that the system says it does not have is free to be terminated."""
    notifier, unknown = site.make(), NodeReference(pool="training", node="never-was")
    assert (await notifier.workloads([unknown]))["never-was"].drained
    site.answer("well", b'{"hosts": {}}')
    assert await notifier.workloads([NODE, unknown]) == {}
    await notifier.close()
