"""The gateway's application runs on the in-memory bus, with small services beside it.

The services are a pool-manager and a provisioner.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import msgspec
import pytest
from litestar import Litestar
from litestar.handlers import ASGIRouteHandler
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.dry_run import DryRun, DryRunRequest
from schemas.fleet_events import HttpChange
from schemas.fleet_queries import FleetBudgetView, ListedNode, NodeView, Page, PoolView, Query
from schemas.gateway_settings import TokenSpec
from schemas.hardware_denylist import HardwareRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import FACTS, PoolEvent, RequestAccepted, RequestRefused, Scaled
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_log_entries import SagaStarted
from schemas.saga_params import LaunchSpec, SagaParams
from schemas.settings import PoolSpec
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, POOL_REQUESTS, POOLS
from schemas.topology import NODES as NODE_RECORDS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.fleet_client.fleet_client import FleetClient
from services.gateway.access_tokens import digest
from services.gateway.authentication import Access
from services.gateway.authenticators.authenticator import Authenticator
from services.gateway.authenticators.chain import AuthenticatorChain
from services.gateway.caller_rate import CallerRate
from services.gateway.event_streams import EventRelay, EventStreams
from services.gateway.http_app import http_app
from services.health_monitor.rules.policy_explanation import policy_view
from services.health_monitor.rules.policy_file import load_policy, policy_path
from services.pool_manager.requests.request_replies import read_request, read_stored_request
from services.primitives.clock import SystemClock
from services.saga.participant import append
from tests.gateway.order_answers import Orders, open_alerts

SAGA: Final = "drain-training-1-1"
NOW: Final = datetime(2026, 11, 23, 9, tzinfo=UTC)
HOSTILE: Final = '"\n\x1b[31m</script><script>alert(1)</script>\u202e'
NODES: Final = tuple(
    NodeView(
        id=f"{pool}-{number}",
        pool=pool,
        status="active" if number < 3 else "launching",
        health="unhealthy" if number == 2 else "healthy",
        cordoned=number == 1,
        provider="aws" if pool == "training" else "lambda",
        region="us-east-1",
        zone=f"us-east-1{'ab'[number % 2]}",
        reason=HOSTILE if number == 2 else "",
    )
    for pool in ("serving", "training")
    for number in (1, 2, 3)
)
POOL_VIEWS: Final = tuple(
    PoolView(
        name=name,
        desired=3,
        nodes=3,
        active=2,
        healthy=1,
        unhealthy=1,
        cordoned=1,
        min_nodes=0,
        max_nodes=4,
        breaker="closed",
    )
    for name in ("serving", "training")
)
TOKENS: Final = {
    "ada": TokenSpec(sha256=digest("viewer-token"), role="viewer"),
    "bob": TokenSpec(sha256=digest("operator-token"), role="operator"),
    "cid": TokenSpec(sha256=digest("admin-token"), role="admin"),
    "sue": TokenSpec(sha256=digest("scoped-token"), role="operator", pools=("train*",)),
    "old": TokenSpec(sha256=digest("expired-token"), role="admin", expires=NOW - timedelta(1)),
}


def page(items: tuple[Any, ...], query: Query, key: Callable[[Any], str]) -> bytes:
    """One page of what a service answers."""
    rest = [each for each in items if key(each) > query.after]
    found = rest[: query.limit]
    after = key(found[-1]) if len(rest) > len(found) else ""
    return encode(Page(items=tuple(msgspec.Raw(encode(each)) for each in found), next=after))


async def _nodes(data: bytes, _: Mapping[str, str]) -> bytes:
    query = msgspec.json.decode(data, type=Query)
    found = tuple(
        ListedNode(**msgspec.structs.asdict(each))
        for each in NODES
        if query.pool in ("", each.pool)
    )
    return page(found, query, lambda each: f"{each.pool}.{each.id}")


async def _node(data: bytes, _: Mapping[str, str]) -> bytes:
    name = msgspec.json.decode(data, type=Query).node
    for each in NODES:
        if each.id == name:
            return encode(each)
    raise ValueError(f"there is no node {name!r}")


async def _pools(data: bytes, _: Mapping[str, str]) -> bytes:
    query = msgspec.json.decode(data, type=Query)
    found = tuple(each for each in POOL_VIEWS if query.pool in ("", each.name))
    return page(found, query, lambda each: each.name)


async def _instances(data: bytes, _: Mapping[str, str]) -> bytes:
    query = msgspec.json.decode(data, type=Query)
    launch = LaunchSpec(fleet="tests", provider="aws", instance_type="p5", region="us-east-1")
    found = tuple(
        InstanceRecord(
            pool=each.pool,
            instance=each.id,
            provider="aws",
            token="secret-of-the-launch",
            launch=launch,
            intended_at=NOW,
            running_at=NOW,
            dollars_per_hour=2.0,
        )
        for each in NODES
        if query.pool in ("", each.pool)
    )
    return page(found, query, lambda each: f"{each.pool}.{each.instance}")


async def _offerings(_: bytes, __: Mapping[str, str]) -> bytes:
    return encode(Page())


async def _budget(_: bytes, __: Mapping[str, str]) -> bytes:
    return encode(FleetBudgetView(desired=6, unavailable=1, unavailable_limit=2, disruptions=0))


async def _dry_run(data: bytes, _: Mapping[str, str]) -> bytes:
    asked = msgspec.json.decode(data, type=DryRunRequest)
    return encode(DryRun(verb=asked.verb, node=asked.node, pool="training", accepted=True))


async def _sagas(_: bytes, __: Mapping[str, str]) -> bytes:
    found = tuple({"saga": f"drain-{each}-1-1", "pool": each} for each in ("serving", "training"))
    return encode(Page(items=tuple(msgspec.Raw(msgspec.json.encode(each)) for each in found)))


async def _hardware(_: bytes, __: Mapping[str, str]) -> bytes:
    found = HardwareRecord(kind="gpu", value="GPU-1", since=NOW, reason=HOSTILE)
    return msgspec.json.encode([found])


async def _policy(_: bytes, __: Mapping[str, str]) -> bytes:
    return encode(policy_view(load_policy(policy_path("", None))))


ENDPOINTS: Final = {
    "nodes": _nodes,
    "node": _node,
    "pools": _pools,
    "instances": _instances,
    "offerings": _offerings,
    "dry-run": _dry_run,
    "budget": _budget,
    "sagas": _sagas,
    "hardware": _hardware,
    "policy": _policy,
}


@dataclass(slots=True)
class Gateway:
    """Holds the application, its bus and its clients."""

    app: Litestar
    bus: MemoryBus
    relay: EventRelay
    clients: list[httpx.AsyncClient] = field(default_factory=list)

    def client(self, token: str = "viewer-token", **headers: str) -> httpx.AsyncClient:
        """Return a caller with a token; an empty token sends none."""
        own = {"Authorization": f"Bearer {token}"} if token else {}
        made = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url="http://127.0.0.1",
            headers=own | headers,
        )
        self.clients.append(made)
        return made


MakeGateway = Callable[..., Gateway]


@pytest.fixture
def orders() -> Orders:
    """Return the record of what services were asked to do at once."""
    return Orders()


@pytest.fixture
async def bus(orders: Orders) -> AsyncIterator[MemoryBus]:
    """The in-memory bus with the topology, two pools' records and answers to queries."""
    server = MemoryServer(SystemClock())
    found = MemoryBus(server, PerfectLink())
    await set_up(found, SystemClock(), replicas=1)
    for name, labels in (("serving", {"team": "web"}), ("training", {"team": "ml", "tier": "1"})):
        spec = PoolSpec(min_nodes=0, max_nodes=4, labels=labels)
        await found.put(POOLS, pool_key(name), encode(PoolRecord(name=name, spec=spec, desired=3)))
    for each in NODES:
        record = NodeRecord(pool=each.pool, node=each.id, state="active")
        await found.put(NODE_RECORDS, node_key(each.pool, each.id), encode(record))
    endpoints = {subjects.query(name): each for name, each in ENDPOINTS.items()}
    await found.serve("pool-manager", "a small one", endpoints)
    await found.serve("notifier", "another", orders.endpoints("training-1"))
    await open_alerts(found)
    yield found
    await found.close()
    server.close()


@pytest.fixture
async def make_gateway(bus: MemoryBus) -> AsyncIterator[MakeGateway]:
    """Make gateways over the bus."""
    made: list[Gateway] = []
    relaying: list[asyncio.Task[None]] = []

    def make(
        tokens: Mapping[str, TokenSpec] = TOKENS,
        per_minute: int = 60_000,
        kept_max: int = 100,
        streams_max: int = 8,
        more: Sequence[ASGIRouteHandler] = (),
        others: Mapping[str, Authenticator] | None = None,
    ) -> Gateway:
        clock = SystemClock()
        chain = AuthenticatorChain(tokens, others or {}, clock.now)
        access = Access(chain, CallerRate(per_minute), clock.now)
        fleet = FleetClient(bus, user="gateway")
        registry, relay = CollectorRegistry(), EventRelay(bus, clock, kept_max=kept_max)
        streams = EventStreams(relay, streams_max, clock.now, registry, heartbeat_seconds=0.1)
        app = http_app(bus, fleet, access, streams, clock, registry, more)
        relaying.append(asyncio.create_task(relay.run()))
        gateway = Gateway(app, bus, relay)
        made.append(gateway)
        return gateway

    yield make
    for task in relaying:
        task.cancel()
    await asyncio.gather(*relaying, return_exceptions=True)
    for client in itertools.chain.from_iterable(each.clients for each in made):
        await client.aclose()


@pytest.fixture
async def gateway(make_gateway: MakeGateway) -> Gateway:
    """Return a gateway with a token of each role."""
    return make_gateway()


@dataclass(slots=True)
class Manager:
    """Answers requests, and keeps what they were."""

    bus: MemoryBus
    asked: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    """Pool, verb and fields, as the pool-manager reads them."""
    hears: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Accept everything but what concerns training-2."""
        async for delivery in self.bus.consume(POOL_REQUESTS):
            await self.hears.wait()
            queued = read_stored_request(delivery.stored, is_open=False)
            assert not hasattr(queued, "reason"), queued
            request = read_request(queued)  # type: ignore[arg-type]
            parsed = subjects.parse_pool_request(delivery.stored.subject)
            assert parsed is not None
            fields = msgspec.to_builtins(request, enc_hook=float)
            self.asked.append((parsed.pool, parsed.verb, fields))
            event = self._answer(parsed.pool, parsed.verb, fields, delivery.stored.sequence)
            await self.bus.publish(
                subjects.pool_event(parsed.pool, FACTS[type(event)]), encode(event)
            )
            await delivery.ack()

    def _answer(self, pool: str, verb: str, fields: dict[str, Any], number: int) -> PoolEvent:
        common: dict[str, Any] = {"id": f"answer-{number}", "time": datetime.now(UTC), "pool": pool}
        common |= {"request": fields["request"]}
        node = fields.get("node", "")
        if node == "training-2":
            reason = f"a saga is open {HOSTILE}"
            return RequestRefused(verb=verb, refusal="saga-open", reason=reason, **common)
        if verb == "scale":
            return Scaled(previous=1, nodes=fields["nodes"], **common)
        return RequestAccepted(verb=verb, node=node, saga=f"{verb}-1", **common)


@pytest.fixture
async def manager(bus: MemoryBus) -> AsyncIterator[Manager]:
    """A pool-manager that answers, and a saga that drains."""
    found = Manager(bus)
    found.hears.set()
    params = SagaParams(pool="training", node="training-1")
    await append(bus, SagaStarted(id="s", time=NOW, saga=SAGA, kind="drain", params=params), 0, {})
    running = asyncio.create_task(found.run())
    yield found
    running.cancel()
    await asyncio.wait({running})


async def changes(bus: MemoryBus) -> list[HttpChange]:
    """The events about what was requested."""
    stored = await bus.read(EVENTS.name, subjects.fleet_event("http-change"))
    found = [decode_stored(each) for each in stored]
    assert all(isinstance(each, HttpChange) for each in found)
    return found  # type: ignore[return-value]
