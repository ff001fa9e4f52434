"""A request that comes while a pool's record still has a saga open whose log has just ended."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import OpenSaga, PoolRecord, pool_key
from schemas.saga_log_entries import (
    STATUSES,
    WHOLE,
    SagaDone,
    SagaStarted,
    StepEntry,
    StepStarted,
    StepSucceeded,
)
from schemas.saga_params import SagaParams
from schemas.topology import EVENTS, NODES, POOLS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.port import Stored
from services.bus.topology_setup import set_up
from services.pool_manager.requests.request_replies import QueuedRequest
from services.pool_manager.service import PoolManager
from services.primitives.errors import Retry
from services.runtime.consumer_loop import Received
from services.runtime.process import Context
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing
from services.simulator.engine import virtual_time
from services.simulator.engine.virtual_time import VirtualClock
from tests.pool_manager.fleet import settings

Task = asyncio.Future[None]
NOW = datetime(2026, 11, 23, tzinfo=UTC)
SAGA = "cordon-n1-1"
ABOUT: dict[str, Any] = {"saga": SAGA, "time": NOW}
PARAMS = SagaParams(pool="training", node="n1")
LOG = (
    SagaStarted(id="1", kind="cordon", params=PARAMS, **ABOUT),
    StepStarted(id="2", step="cordon", **ABOUT),
    StepSucceeded(id="3", step="cordon", **ABOUT),
    SagaDone(id="4", **ABOUT),
)


async def begin(bus: MemoryBus, clock: VirtualClock) -> tuple[PoolManager, list[Task]]:
    """A pool-manager that has looked at its records once, and what keeps its view of them."""
    await set_up(bus, clock, replicas=1)
    manager = PoolManager(
        Context(
            name="pool-manager",
            replica="pool-manager-1",
            bus=bus,
            clock=clock,
            settings=settings(),
            settings_file=None,
            instruments=Instruments(),
            tracing=Tracing("pool-manager"),
        )
    )
    await manager.prepare()
    views = [asyncio.ensure_future(each()) for each in manager.service().tasks[:3]]
    others = [asyncio.ensure_future(each()) for each in manager.service().tasks[3:]]
    while not manager.store.trusted:
        await asyncio.sleep(1)
    await end(others)
    return manager, views


async def end(tasks: list[Task]) -> None:
    """Stop the tasks and wait for their end."""
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)


async def record_behind(bus: MemoryBus) -> None:
    """A cordon of n1 is done, and its pool has it open."""
    node = NodeRecord(pool="training", node="n1", state="active", cordoned=True, sagas=1)
    await bus.put(NODES, node_key("training", "n1"), encode(node))
    for entry in LOG:
        step = entry.step if isinstance(entry, StepEntry) else WHOLE
        await bus.publish(subjects.saga_entry(SAGA, step, STATUSES[type(entry)]), encode(entry))
    await save_open(bus, {SAGA: OpenSaga(kind="cordon", node="n1", since=NOW)})


async def save_open(bus: MemoryBus, opened: dict[str, OpenSaga]) -> None:
    """Record these sagas as open."""
    found = await bus.get(POOLS, pool_key("training"))
    assert found is not None
    record = decoder(PoolRecord).decode(found.value)
    await bus.put(POOLS, pool_key("training"), encode(msgspec.structs.replace(record, open=opened)))


@pytest.mark.parametrize("verb", ["uncordon", "cordon", "drain", "replace"])
def test_no_request_is_refused_because_the_record_is_behind_the_log(verb: str) -> None:
    """The request is tried again, and answered as if it had come a moment later."""

    async def run() -> None:
        clock = VirtualClock()
        server = MemoryServer(clock)
        bus = MemoryBus(server, PerfectLink())
        manager, views = await begin(bus, clock)
        await record_behind(bus)
        asked = QueuedRequest(
            id="request-7",
            sequence=7,
            time=clock.now(),
            pool="training",
            verb=verb,
            payload=b'{"node": "n1"}',
        )
        subject = subjects.pool_request("training", verb)
        received = Received(asked, Stored(subject, asked.payload, 7, clock.now()))
        with pytest.raises(Retry, match="has ended"):
            await manager.on_request(received)
        assert await bus.read(EVENTS.name, subjects.pool_event("training", "request-refused")) == []
        await save_open(bus, {})
        await manager.on_request(received)
        [answer] = await bus.read(EVENTS.name, subjects.pool_event("training", "request-accepted"))
        assert msgspec.json.decode(answer.data)["verb"] == verb
        await end(views)
        server.close()

    virtual_time.run(run)
