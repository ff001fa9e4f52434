"""The Python client calls the gateway: reads, changes, pages, streams, errors; async and sync."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from schemas.fleet_queries import NodeView
from services.bus.memory.memory_bus import MemoryBus
from services.gateway.views import ChangeAnswer
from services.http_client import (
    AsyncNavarch,
    ChangeRefusedError,
    ForbiddenError,
    Navarch,
    NotFoundError,
    UnansweredChangeError,
    UnauthenticatedError,
    gateway_calls,
)
from services.http_client.api_call import InvalidCallError, KeyReusedError
from services.primitives.errors import NavarchError
from tests.gateway.conftest import HOSTILE, NODES, SAGA, Gateway, MakeGateway, Manager
from tests.gateway.test_event_streams import publish
from tests.support.cutting import Proxy
from tests.support.serving import serving


@pytest.fixture
async def url(gateway: Gateway) -> AsyncIterator[str]:
    """Serve the gateway and yield its address."""
    async with serving(gateway.app) as found:  # type: ignore[arg-type]
        yield found


def client(url: str, token: str = "viewer-token", **options: Any) -> AsyncNavarch:
    """Return a caller with a token."""
    return AsyncNavarch(url, token=token, **options)


async def test_every_read_returns_its_type(url: str, manager: Manager) -> None:
    """A read returns its type, also of hostile text."""
    assert manager.asked == []
    async with client(url, "admin-token") as fleet:
        node = await fleet.get_node("training-2")
        assert (type(node), node.reason) == (NodeView, HOSTILE)
        assert [each.name for each in await fleet.list_pools()] == ["serving", "training"]
        assert (await fleet.get_pool("training")).desired == 3
        assert (await fleet.get_pool_status("training")).total_nodes == 3
        assert (await fleet.get_node_why("training-1")).about == "training-1"
        assert (await fleet.get_pool_why("training")).kind == "pool"
        assert [each.saga for each in await fleet.list_sagas()] == []
        assert (await fleet.get_saga(SAGA)).saga.kind == "drain"
        assert (await fleet.get_caller()).role == "admin"
        assert (await fleet.get_budget()).desired == 6
        assert (await fleet.get_policy()).rules
        assert (await fleet.get_pool_history("training", since="2h")).pool == "training"
        assert (await fleet.get_pool_utilization("training")).sampled > 0
        for read in (fleet.list_offerings, fleet.list_incidents, fleet.list_evidence):
            assert await read() == []
        assert await fleet.get_node_samples("training-1") == []
        [row] = await fleet.get_node_timeline("training-1")
        assert (row.source, row.saga) == ("saga", SAGA)
        one = await fleet.list_nodes(labels=("team=ml", "tier=1"), health="unhealthy")
        assert [each.id for each in one.items] == ["training-2"]


async def test_pages_are_read_as_they_are_wanted(url: str, bus: MemoryBus) -> None:
    """All items of all pages, each once, for both kinds of cursors."""
    await publish(bus, 7)
    async with client(url) as fleet:
        names = [each.id async for each in fleet.each_node(limit=2)]
        instances = [each.instance async for each in fleet.each_instance(pool="serving", limit=1)]
        events = [each.sequence async for each in fleet.each_event(since="1h", limit=3)]
    assert names == [each.id for each in NODES]
    assert instances == [each.id for each in NODES if each.pool == "serving"]
    assert events == list(range(1, 8))


async def test_a_change_is_carried_out_once_for_each_key(url: str, manager: Manager) -> None:
    """Each kind of change; a repeated key gets the answer of before, another change with it 422."""
    async with client(url, "admin-token") as fleet:
        first = await fleet.cordon_node("training-1", reason="x", key="once")
        assert isinstance(first, ChangeAnswer)
        assert first == await fleet.cordon_node("training-1", reason="x", key="once")
        with pytest.raises(KeyReusedError):
            await fleet.drain_node("training-1", key="once")
        assert (await fleet.hold_node("training-1", for_="2h", reason="x")).verb == "hold"
        assert (await fleet.scale_pool("training", 2)).verb == "scale"
        assert (await fleet.open_breaker("training", reason="x")).pool == "training"
        assert (await fleet.cancel_saga(SAGA, reason="x")).verb == "cancel"
        assert (await fleet.up_pool("training", {"max_nodes": 2}, nodes=1)).verb == "apply"
        assert (await fleet.dry_run_node("training-1", "replace", mode="wait")).accepted
    # A change that came without a key had one of its own.
    assert [verb for _, verb, _ in manager.asked] == [
        *("cordon", "hold", "scale", "breaker-open", "cancel", "apply")
    ]


async def test_problems_are_errors_with_types(
    url: str, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors have types for forbidden, missing and refused calls.

    The remedy is in the text, a token never.
    """
    secret = "a-guess-of-more-than-ten-characters"
    async with client(url, secret) as fleet:
        with pytest.raises(UnauthenticatedError, match="navarch gateway token create") as wrong:
            await fleet.list_nodes()
        assert secret not in f"{wrong.value!r} {fleet._transport._options!r}"
    async with client(url) as fleet:
        with pytest.raises(ForbiddenError, match="role operator"):
            await fleet.cordon_node("training-1")
        with pytest.raises(NotFoundError, match="no node 'gone-1'"):
            await fleet.get_node("gone-1")
        with pytest.raises(InvalidCallError, match="since"):
            await fleet.list_events(since="yesterday")
    async with client(url, "operator-token") as fleet:
        with pytest.raises(ChangeRefusedError) as refused:
            await fleet.cordon_node("training-2")
        assert refused.value.problem.refusal == "saga-open"
        assert len(manager.asked) == 1, "what is refused is not tried again"
        monkeypatch.setattr("services.fleet_client.fleet_client.ANSWER_SECONDS_MAX", 0.01)
        manager.hears.clear()
        with pytest.raises(UnansweredChangeError) as unanswered:
            await fleet.cordon_node("training-1")
        monkeypatch.undo()
        manager.hears.set()
        again = await fleet.cordon_node("training-1", key=unanswered.value.key)
        assert again.verb == "cordon"
    assert len(manager.asked) == 2


async def test_a_stream_goes_on_over_broken_connections(
    url: str, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream starts now or at a position, and has each event once.

    Events that came during an interruption are among them.
    """
    monkeypatch.setattr("services.http_client.http_transport.RECONNECT_SECONDS", 0.01)
    proxy = Proxy(int(url.rpartition(":")[2]))
    await proxy.restore()
    async with client(f"http://127.0.0.1:{proxy.port}") as fleet:
        found = []
        events = fleet.follow_events(after=0, pool="training")
        async with asyncio.timeout(30), aclosing(events):
            for _ in range(3):
                await publish(bus, 2)
                found += [(await anext(events)).sequence for _ in range(2)]
                await proxy.cut()
                await publish(bus, 1)
                await proxy.restore()
                found.append((await anext(events)).sequence)
        assert found == list(range(1, 10))
        async with asyncio.timeout(20):
            async for event in fleet.follow_events(after=4):
                assert event.sequence == 5
                break
    await proxy.cut()


async def test_a_stream_that_may_not_be_is_no_stream(make_gateway: MakeGateway) -> None:
    """A refused stream ends at once with the problem's error, not after minutes of trying."""
    async with serving(make_gateway().app) as url:  # type: ignore[arg-type]
        for token, pool, error in (
            ("guess", "", UnauthenticatedError),
            ("scoped-token", "serving", ForbiddenError),
        ):
            async with client(url, token) as fleet:
                with pytest.raises(error):
                    await anext(fleet.follow_events(pool=pool))


async def test_the_client_that_waits_does_the_same(url: str, bus: MemoryBus) -> None:
    """Calls, pages, streams and errors, from any thread, also beside a running loop."""
    await publish(bus, 3)

    def use() -> list[Any]:
        with Navarch(url, token="viewer-token") as fleet:
            found: list[Any] = [fleet.get_node("training-1").id]
            found += [each.id for each in fleet.each_node(pool="serving", limit=1)]
            for event in fleet.follow_events(after=1):
                found.append(event.sequence)
                if len(found) == 6:
                    break
            with pytest.raises(ForbiddenError):
                fleet.scale_pool("training", 1)
            found.append(fleet.send(gateway_calls.get_caller()).name)
        fleet.close()
        return found

    async with asyncio.timeout(20):
        found = await asyncio.to_thread(use)
    assert found == ["training-1", "serving-1", "serving-2", "serving-3", 2, 3, "ada"]


def test_what_names_no_gateway_is_refused_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An address with a password, a token with a line break, and no address are refused."""
    for variable in ("NAVARCH_SERVER", "NAVARCH_AUTH_TOKEN", "NAVARCH_CA_FILE"):
        monkeypatch.delenv(variable, raising=False)
    for server, token, said in (
        ("", "", "no gateway is named"),
        ("ftp://host", "", "is no address"),
        ("host:8080", "", "is no address"),
        ("https://host:99999", "", "is no address"),
        ("https://ada:secret-word@host", "", "the token goes in"),
        ("https://host?token=secret-word", "", "the token goes in"),
        ("https://host", "secret-word\nX-Other: 1", "characters that no token has"),
    ):
        with pytest.raises(NavarchError, match=said) as refused:
            AsyncNavarch(server, token=token)
        assert "secret-word" not in str(refused.value)
    with pytest.raises(NavarchError, match="NAVARCH_CA_FILE: /none"):
        AsyncNavarch("https://host", ca_file="/none")
