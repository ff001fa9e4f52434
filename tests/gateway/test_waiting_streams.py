"""Streams of a saga and of a pool, and the reads of `status`, `report`, `use`: who sees what."""

import asyncio
import json
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import httpx
import pytest

from schemas import subjects
from schemas.gpu_samples import GpuSample
from schemas.messages import encode
from schemas.node_events import Repaired, Telemetry
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import pool_key
from schemas.saga_log_entries import SagaDone, SagaStuck
from schemas.topology import NODES, POOLS, SAGAS
from services.bus.memory.memory_bus import MemoryBus
from services.http_client import AsyncNavarch, EventsResetError, NotFoundError
from services.primitives.clock import SystemClock
from services.saga.participant import append
from tests.gateway.conftest import HOSTILE, NOW, SAGA, Gateway, MakeGateway, Manager
from tests.gateway.test_event_streams import events_of
from tests.gateway.test_reading import ask
from tests.support.serving import serving


async def test_a_sagas_stream_is_resumed_and_ends_with_it(
    gateway: Gateway, bus: MemoryBus, manager: Manager
) -> None:
    """Each entry once, in order; a stuck saga goes on after it was retried."""
    assert manager.asked == []
    async with (
        serving(gateway.app) as url,  # type: ignore[arg-type]
        asyncio.timeout(30),
        AsyncNavarch(url, token="scoped-token") as fleet,
    ):
        first = [each async for each in _until(fleet, 1)]
        assert (first[0].entry["saga"], first[0].sequence) == (SAGA, 1)
        stuck = SagaStuck(id="t", time=NOW, saga=SAGA, step="drain", reason=HOSTILE)
        at = await append(bus, stuck, 1, {})
        assert [each.sequence async for each in fleet.follow_saga(SAGA)] == [1, 2]
        await append(bus, SagaDone(id="d", time=NOW, saga=SAGA), at, {})
        later = [each async for each in fleet.follow_saga(SAGA, after=2)]
        assert [(each.sequence, each.subject.rpartition(".")[2]) for each in later] == [(3, "done")]
        assert [each async for each in fleet.follow_saga(SAGA, after=3)] == []
        with pytest.raises(EventsResetError):
            await anext(fleet.follow_saga(SAGA, after=99))
        with pytest.raises(NotFoundError):
            await anext(fleet.follow_saga("drain-gone-1-1"))


async def _until(fleet: AsyncNavarch, count: int) -> Any:
    async with aclosing(fleet.follow_saga(SAGA)) as entries:
        async for each in entries:
            yield each
            count -= 1
            if not count:
                return


async def test_a_pools_stream_begins_with_the_whole_and_ends_with_the_pool(
    gateway: Gateway, bus: MemoryBus, manager: Manager
) -> None:
    """Then what changes, of its own nodes and sagas alone; a record that says the same is none."""
    assert manager.asked == []
    async with (
        serving(gateway.app) as url,  # type: ignore[arg-type]
        asyncio.timeout(30),
        AsyncNavarch(url, token="scoped-token") as fleet,
    ):
        with pytest.raises(NotFoundError):
            await anext(fleet.follow_pool("serving"))
        changes = fleet.follow_pool("training")
        whole = await anext(changes)
        assert (whole.whole, whole.removed, whole.entries) == (True, False, ())
        assert [each.node for each in whole.nodes] == ["training-1", "training-2", "training-3"]
        for pool, health in (("serving", "unhealthy"), ("training", "unhealthy")):
            same = NodeRecord(pool=pool, node=f"{pool}-1", state="active", health=health)
            await bus.put(NODES, node_key(pool, f"{pool}-1"), encode(same))
        gone = NodeRecord(pool="training", node="training-1", state="terminated")
        await bus.put(NODES, node_key("training", "training-1"), encode(gone))
        [place] = (await anext(changes)).nodes
        assert (place.node, place.state) == ("training-1", "terminated")
        await bus.delete(NODES, node_key("training", "training-2"))
        [place] = (await anext(changes)).nodes
        assert (place.node, place.state) == ("training-2", "terminated")
        await bus.delete(POOLS, pool_key("training"))
        assert (await anext(changes)).removed
        assert [each async for each in changes] == []
        again = [each async for each in fleet.follow_pool("training")]
        assert [(each.whole, each.removed) for each in again] == [(True, True)]


async def test_waiting_streams_count_as_streams_and_end_with_the_gateway(
    make_gateway: MakeGateway, manager: Manager
) -> None:
    """A quarter for one token; signs of life; a stream that the gateway ends is not complete."""
    assert manager.asked == []
    gateway = make_gateway(streams_max=4)
    own = {"Authorization": "Bearer viewer-token"}
    async with (
        serving(gateway.app) as url,  # type: ignore[arg-type]
        asyncio.timeout(30),
        httpx.AsyncClient(base_url=f"{url}/api/v1", headers=own) as client,
    ):
        async with client.stream("GET", "/pools/training/stream") as answer:
            events = events_of(answer)
            seen = [await anext(events) for _ in range(3)]
            assert [each.get("comment", "") for each in seen] == ["connected", "", "alive"]
            assert json.loads(seen[1]["data"])["whole"]
            for path in (f"/sagas/{SAGA}/stream", "/events/stream", "/pools/serving/stream"):
                assert (await client.get(path)).status_code == 429
            gateway.relay.close()
            assert "end" not in [each.get("event") async for each in events]
        assert (await client.get("/pools/serving")).status_code == 200


async def test_status_has_what_the_caller_may_see(gateway: Gateway, bus: MemoryBus) -> None:
    """A pool's token sees its own pools and sagas, and nothing of the fleet's services."""
    whole = await ask(gateway, "/status")
    assert [each["name"] for each in whole["pools"]] == ["serving", "training"]
    assert [each["pool"] for each in whole["sagas"]] == ["serving", "training"]
    assert whole["bus_is_open"] == bus.is_open
    scoped = (await gateway.client("scoped-token").get("/api/v1/status")).json()
    assert [each["name"] for each in scoped["pools"]] == ["training"]
    assert [each["pool"] for each in scoped["sagas"]] == ["training"]
    assert (scoped["failures"], scoped["bus_is_open"]) == ([], False)
    assert "secret-of-the-launch" not in json.dumps(whole)
    assert (await ask(gateway, "/hardware"))[0]["reason"] == HOSTILE
    assert (await gateway.client("scoped-token").get("/api/v1/hardware")).status_code == 403


async def test_what_is_read_over_time_is_of_the_callers_pools(
    gateway: Gateway, bus: MemoryBus, manager: Manager
) -> None:
    """Sagas, repairs and use; a limit keeps the newest, and a wrong time is a problem."""
    assert manager.asked == []
    now = SystemClock().now()
    for pool in ("serving", "training"):
        about = {"pool": pool, "node": f"{pool}-1", "time": now}
        ended = {"unhealthy_at": now - timedelta(hours=1), "restored_at": now}
        repaired = Repaired(
            id=f"r-{pool}", outcome="reset", fault_signature=HOSTILE, **ended, **about
        )
        await bus.publish(subjects.node_event(pool, f"{pool}-1", "repaired"), encode(repaired))
        sample = Telemetry(id=f"t-{pool}", gpus=(GpuSample(index=0, power_watts=7),), **about)
        await bus.publish(subjects.telemetry(pool, f"{pool}-1"), encode(sample))
    for path, key, count in (
        ("/report", "rows", 2),
        ("/report?pool=training&since=2h", "rows", 1),
        ("/use", "", 2),
        ("/use?gpus=true&pool=training", "", 1),
        ("/sagas/history?since=7d", "", 1),
        ("/sagas/history?pool=serving", "", 0),
    ):
        whole = await ask(gateway, path)
        found = whole[key] if key else whole
        assert len(found) == count, path
        scoped = gateway.client("scoped-token")
        answer = await scoped.get(f"/api/v1{path}")
        seen = [] if answer.status_code == 404 else answer.json()
        assert {each["pool"] for each in (seen[key] if key else seen)} <= {"training"}, path
    await append(
        bus, SagaDone(id="d", time=NOW, saga=SAGA), await bus.last_sequence(SAGAS.name), {}
    )
    [saga] = await ask(gateway, "/sagas/history?limit=1")
    assert (saga["saga"], saga["status"]) == (SAGA, "done")
    for path in ("/report?since=soon", "/sagas/history?since=soon", "/sagas/history?limit=0"):
        await ask(gateway, path, 400)
    for path in ("/report?pool=none", "/sagas/history?pool=..", "/use?pool=none"):
        await ask(gateway, path, 404)
    page = await ask(gateway, "/events?since=1s&type=none")
    assert page["next"] == await bus.last_sequence("EVENTS"), "where a follower begins"
