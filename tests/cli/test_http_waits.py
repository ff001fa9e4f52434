"""`--wait` and `--watch` over HTTP: by streams that go on over lost connections."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import pytest

from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import pool_key
from schemas.saga_log_entries import SagaDone, SagaStarted, StepStarted
from schemas.saga_params import SagaParams
from schemas.topology import NODES, POOLS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.port import Stored
from services.cli import progress_board
from services.cli.bus_client import BusFleet
from services.cli.commands import view_commands
from services.cli.console import Format
from services.cli.fleet_connection import FleetAccess
from services.cli.http_fleet import HttpFleet
from services.cli.node_requests import saga_end
from services.fleet_client.pool_watch import PoolChange
from services.http_client import AsyncNavarch, http_transport
from services.primitives.errors import NavarchError
from services.saga.participant import append
from tests.gateway.conftest import MakeGateway
from tests.gateway.conftest import bus as bus
from tests.gateway.conftest import make_gateway as make_gateway
from tests.gateway.conftest import orders as orders
from tests.gateway.test_event_streams import publish
from tests.support.cutting import Proxy
from tests.support.serving import serving

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
SAGA = "scale-up-training-9-1"

Wait = Callable[[FleetAccess], Awaitable[object]]


class Watched(HttpFleet):
    """A fleet that says when what it follows has begun."""

    def __init__(self, client: AsyncNavarch) -> None:
        super().__init__(client)
        self.begun = asyncio.Event()

    async def follow_pool(self, pool: str) -> AsyncGenerator[PoolChange, None]:
        """Follow the pool, and note when the first change has come."""
        async with aclosing(super().follow_pool(pool)) as changes:
            async for each in changes:
                self.begun.set()
                yield each

    async def follow_saga(
        self, saga: str, *, after: int | None = None
    ) -> AsyncGenerator[Sequence[Stored], None]:
        """Follow the saga, and note when the first entries have come."""
        async with aclosing(super().follow_saga(saga, after=after)) as entries:
            async for each in entries:
                self.begun.set()
                yield each


@asynccontextmanager
async def over_http(
    make: MakeGateway, give_up_seconds: float = 20, token: str = "operator-token"
) -> AsyncIterator[tuple[Watched, Proxy]]:
    """A fleet over HTTP, on a line that can be cut."""
    async with serving(make().app) as url:  # type: ignore[arg-type]
        proxy = Proxy(int(url.rpartition(":")[2]))
        await proxy.restore()
        address = f"http://127.0.0.1:{proxy.port}"
        async with AsyncNavarch(address, token=token, give_up_seconds=give_up_seconds) as client:
            yield Watched(client), proxy
        await proxy.cut()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_transport, "RECONNECT_SECONDS", 0.01)
    monkeypatch.setattr(view_commands, "INTERVAL_SECONDS_MIN", 0.0)


async def node(bus: MemoryBus, number: int, state: str) -> None:
    """A node is in a state."""
    name = f"training-{number}"
    record = NodeRecord(pool="training", node=name, state=state)  # type: ignore[arg-type]
    await bus.put(NODES, node_key("training", name), encode(record))


async def remove(bus: MemoryBus) -> None:
    """The pool is gone, with its nodes."""
    for number in (1, 2, 3):
        await bus.delete(NODES, node_key("training", f"training-{number}"))
    await bus.delete(POOLS, pool_key("training"))


async def begin(bus: MemoryBus) -> None:
    """A saga launches training-9."""
    params = SagaParams(pool="training", new_node="training-9")
    started = SagaStarted(id="s", time=NOW, saga=SAGA, kind="scale-up", params=params)
    at = await append(bus, started, 0, {})
    step = StepStarted(id="p", time=NOW, saga=SAGA, step="provision")
    await append(bus, step, at, {})


async def end(bus: MemoryBus) -> None:
    """The saga has launched it."""
    at = await bus.last_sequence("SAGAS")
    await append(bus, SagaDone(id="d", time=NOW, saga=SAGA), at, {})


WAITS: dict[str, tuple[Wait, Sequence[Callable[[MemoryBus], Awaitable[object]]]]] = {
    "resize": (
        lambda fleet: progress_board.show_resize(fleet, "training", 2),
        (partial(node, number=1, state="leaving"), partial(node, number=1, state="terminated")),
    ),
    "launches": (
        lambda fleet: progress_board.show_launches(fleet, "training", 4),
        (begin, partial(node, number=9, state="active")),
    ),
    "removal": (
        lambda fleet: progress_board.show_removal(fleet, "training"),
        (partial(node, number=2, state="leaving"), remove),
    ),
    "saga": (lambda fleet: saga_end(fleet, SAGA, Format.JSON), (begin, end)),
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", WAITS)
async def test_a_wait_over_http_is_the_one_over_the_bus(
    name: str,
    make_gateway: MakeGateway,
    bus: MemoryBus,
    capsys: pytest.CaptureFixture[str],
    *,
    cut: bool,
) -> None:
    """The same lines; with a connection that is lost meanwhile no change is missed."""
    wait, changes = WAITS[name]
    first, *others = changes
    async with over_http(make_gateway) as (fleet, proxy), asyncio.timeout(60):
        if name == "saga":
            await first(bus)
        waiting = asyncio.ensure_future(wait(fleet))
        await fleet.begun.wait()
        if name != "saga":
            await first(bus)
        if cut:
            await proxy.cut()
        for change in others:
            await change(bus)
        if cut:
            await proxy.restore()
        await waiting
    printed = capsys.readouterr().out
    assert printed
    if name != "removal" and not cut:
        async with asyncio.timeout(60):
            await wait(BusFleet(bus))
        assert set(capsys.readouterr().out.splitlines()) <= set(printed.splitlines())


@pytest.mark.parametrize("name", ["resize", "saga"])
async def test_a_gateway_that_stays_away_ends_the_wait_and_not_the_change(
    name: str, make_gateway: MakeGateway, bus: MemoryBus
) -> None:
    """One sentence, which says where to look."""
    await begin(bus)
    wait, _ = WAITS[name]
    async with over_http(make_gateway, give_up_seconds=0.3) as (fleet, proxy), asyncio.timeout(60):
        waiting = asyncio.ensure_future(wait(fleet))
        await fleet.begun.wait()
        await proxy.cut()
        with pytest.raises(NavarchError, match=r"no connection.*; it goes on: navarch why "):
            await waiting


async def test_a_removed_pool_ends_what_waits_for_its_nodes(
    make_gateway: MakeGateway, bus: MemoryBus
) -> None:
    """A wait for nodes of a removed pool would last for ever, so it ends."""
    async with over_http(make_gateway) as (fleet, _), asyncio.timeout(60):
        gone = [each async for each in fleet.follow_pool("gone")]
        assert gone == [PoolChange(removed=True)]
        for wait in ("resize", "launches"):
            fleet.begun.clear()
            waiting = asyncio.ensure_future(WAITS[wait][0](fleet))
            if wait == "resize":
                await fleet.begun.wait()
                await bus.delete(POOLS, pool_key("training"))
            with pytest.raises(NavarchError, match="training was removed"):
                await waiting


async def test_a_pool_of_no_nodes_is_none_before_it_is_known(
    make_gateway: MakeGateway, bus: MemoryBus
) -> None:
    """`scale POOL 0 --wait` ended at once: no node was known yet, and none was wanted."""
    for number in (1, 2, 3):
        await node(bus, number, "leaving")
    for fleet in (BusFleet(bus), None):
        async with over_http(make_gateway) as (other, _), asyncio.timeout(60):
            waiting = asyncio.ensure_future(
                progress_board.show_resize(fleet or other, "training", 0, quiet=True)
            )
            if fleet is None:
                await other.begun.wait()
            done, _ = await asyncio.wait({waiting}, timeout=0.05)
            assert not done
            for number in (1, 2, 3):
                await node(bus, number, "terminated")
            await waiting
            for number in (1, 2, 3):
                await node(bus, number, "leaving")


async def test_a_watched_view_is_shown_again_after_a_lost_connection(
    make_gateway: MakeGateway, bus: MemoryBus
) -> None:
    """The view is shown for each event, also one that came meanwhile.

    A token that is refused ends the watch.
    """
    shown: asyncio.Queue[None] = asyncio.Queue()

    async def view() -> None:
        await shown.put(None)

    async with over_http(make_gateway) as (fleet, proxy), asyncio.timeout(60):
        watching = asyncio.ensure_future(view_commands.show_view(fleet, view, watch=True))
        await shown.get()
        await publish(bus, 1)
        await shown.get()
        await proxy.cut()
        await publish(bus, 1, pool="serving")
        await proxy.restore()
        await shown.get()
        assert not watching.done()
        watching.cancel()
        await asyncio.wait({watching})
    async with over_http(make_gateway, token="guess") as (fleet, _), asyncio.timeout(60):
        with pytest.raises(NavarchError, match="navarch gateway token create"):
            await view_commands.show_view(fleet, view, watch=True)
