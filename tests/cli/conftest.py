"""A minimal pool-manager as a fixture: it answers the queries and requests of the command line."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.dry_run import DryRun, DryRunRequest, Gate
from schemas.duration import decode_hook
from schemas.fleet_queries import HealthEvent, NodeView, Page, PoolView, Query
from schemas.messages import encode
from schemas.node_work import OwnedWork
from schemas.operations import REQUESTS
from schemas.operator_requests import (
    ApplyRequest,
    BreakerRequest,
    HoldRequest,
    NodeRequest,
    RemoveRequest,
    SagaRequest,
    ScaleRequest,
)
from schemas.pool_events import (
    FACTS,
    PoolEvent,
    RequestAccepted,
    RequestRefused,
    Scaled,
    ScaleRefused,
)
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import PoolSpec
from schemas.topology import POOL_REQUESTS, POOLS
from services.bus.nats.nats_bus import NatsBus

FAULT = HealthEvent(
    time="2026-11-21T01:35:00Z",
    kind="xid",
    message="GPU has fallen off the bus.",
    code=79,
    gpu_index=3,
    result="unhealthy",
    rule="fatal-xid",
)
NODES_MAX = 4
NODES = (
    NodeView(id="training-1", pool="training", status="active", health="healthy", gpu_count=8),
    NodeView(
        id="training-2",
        pool="training",
        status="leaving",
        health="unhealthy",
        cordoned=True,
        gpu_count=8,
        saga="replace-training-2-1",
        health_events=(FAULT,),
    ),
    NodeView(id="training-3", pool="training", status="active", health="healthy", gpu_count=8),
)
POOL = PoolView(
    name="training",
    desired=3,
    nodes=3,
    active=2,
    healthy=2,
    unhealthy=1,
    cordoned=1,
    min_nodes=0,
    max_nodes=4,
    breaker="closed",
    open_sagas=("replace-training-2-1",),
)


def _page(items: list[msgspec.Struct], query: Query) -> bytes:
    """One item per page, so that clients request further pages."""
    names = [getattr(each, "id", "") or getattr(each, "name", "") for each in items]
    start = names.index(query.after) + 1 if query.after else 0
    part = items[start : start + 1]
    after = names[start] if start + 1 < len(items) else ""
    return encode(Page(items=tuple(msgspec.Raw(encode(each)) for each in part), next=after))


async def _nodes(data: bytes, _: Mapping[str, str]) -> bytes:
    query = msgspec.json.decode(data, type=Query)
    return _page([each for each in NODES if query.pool in ("", each.pool)], query)


async def _node(data: bytes, _: Mapping[str, str]) -> bytes:
    wanted = msgspec.json.decode(data, type=Query).node
    found = [each for each in NODES if each.id == wanted]
    if not found:
        raise ValueError(f"no node {wanted!r} in this fleet")
    return encode(found[0])


async def _pools(data: bytes, _: Mapping[str, str]) -> bytes:
    query = msgspec.json.decode(data, type=Query)
    return _page([POOL] if query.pool in ("", POOL.name) else [], query)


async def _sagas(_: bytes, __: Mapping[str, str]) -> bytes:
    saga = {"id": "replace-training-2-1", "kind": "replace", "pool": "training", "step": "drain"}
    return encode(Page(items=(msgspec.Raw(msgspec.json.encode(saga)),)))


def _answer(pool: str, verb: str, by: str, data: bytes, ids: "itertools.count[int]") -> PoolEvent:
    common = {"id": f"answer-{next(ids)}", "time": datetime.now(UTC), "pool": pool, "by": by}
    if verb == "scale":
        asked = msgspec.json.decode(data, type=ScaleRequest)
        if asked.nodes > POOL.max_nodes:
            reason = f"{asked.nodes} is above max_nodes {POOL.max_nodes}"
            return ScaleRefused(
                refusal="above-maximum", reason=reason, request=asked.request, **common
            )
        return Scaled(previous=POOL.desired, nodes=asked.nodes, request=asked.request, **common)
    about = msgspec.json.decode(data, type=REQUESTS[verb], dec_hook=decode_hook)
    if isinstance(about, ApplyRequest | RemoveRequest):
        return RequestAccepted(verb=verb, request=about.request, **common)
    if isinstance(about, SagaRequest | BreakerRequest):
        return RequestAccepted(verb=verb, request=about.request, **common)
    assert isinstance(about, NodeRequest | HoldRequest)
    answer = {"verb": verb, "node": about.node, "request": about.request}
    if about.node == "training-2":
        reason = "replace-training-2-1 is under way"
        return RequestRefused(refusal="saga-open", reason=reason, **answer, **common)
    return RequestAccepted(saga=f"{verb}-{about.node}-1", **answer, **common)


async def _answering(bus: NatsBus) -> None:
    ids = itertools.count(1)
    async for delivery in bus.consume(POOL_REQUESTS):
        parsed = subjects.parse_pool_request(delivery.stored.subject)
        assert parsed is not None
        event = _answer(parsed.pool, parsed.verb, parsed.by, delivery.stored.data, ids)
        await bus.publish(subjects.pool_event(parsed.pool, FACTS[type(event)]), encode(event))
        await delivery.ack()


async def _dry_run(data: bytes, _: Mapping[str, str]) -> bytes:
    asked = msgspec.json.decode(data, type=DryRunRequest)
    gates = (Gate(name="budget", passed=True), Gate(name="hold", passed=True))
    refused: dict[str, Any] = {
        "refusal": "saga-open",
        "reason": "replace-training-2-1 is under way",
    }
    more = refused if asked.node == "training-2" else {}
    if (nodes := msgspec.json.decode(asked.request or b"{}").get("nodes", 0)) > NODES_MAX:
        more = {"refusal": "above-maximum", "reason": f"{nodes} nodes asked for"}
    work = OwnedWork(owner="alice", work=("job 1",), total=1)
    found = DryRun(
        owners=(work,) if asked.node and not more else (),
        verb=asked.verb,
        node=asked.node,
        pool="training",
        accepted=not more,
        gates=gates,
        desired=3,
        **more,
    )
    return encode(found)


ENDPOINTS = {
    "nodes": _nodes,
    "node": _node,
    "pools": _pools,
    "sagas": _sagas,
    "dry-run": _dry_run,
}


@asynccontextmanager
async def managing(bus: NatsBus) -> AsyncIterator[None]:
    """Answer queries about three nodes, and requests."""
    record = PoolRecord(name=POOL.name, spec=PoolSpec(min_nodes=0, max_nodes=4), desired=3)
    await bus.put(POOLS, pool_key(POOL.name), encode(record))
    await bus.serve(
        "pool-manager", "a small one", {subjects.query(k): v for k, v in ENDPOINTS.items()}
    )
    answering = asyncio.create_task(_answering(bus))
    try:
        yield
    finally:
        answering.cancel()
        await asyncio.wait({answering})


@pytest.fixture
async def manager(bus: NatsBus) -> AsyncIterator[NatsBus]:
    """Provide a bus with such a responder."""
    async with managing(bus):
        yield bus


@pytest.fixture
def processes_naming() -> Callable[[Path], list[str]]:
    """Find the command lines of all processes that were started for a directory."""

    def find(place: Path) -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                whole = command + (process / "environ").read_bytes()
            except OSError:
                continue
            if str(place).encode() in whole and int(process.name) != os.getpid():
                found.append(command.replace(b"\0", b" ").decode())
        return found

    return find
