"""One agent's credentials evict no history of others, whatever is sent and how fast."""

import asyncio
from contextlib import suppress
from pathlib import Path

import msgspec
import nats
import pytest
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from schemas import permissions
from schemas.account_shares import ANSWER_SECONDS, shares
from schemas.topology import EVENTS
from services.bus.nats.connection_options import credentials
from services.bus.nats.nats_bus import NatsBus
from services.notifier import flood_watch
from services.notifier.store_watch import StoreWatch
from services.primitives.clock import SystemClock
from services.runtime.failure_register import FailureRegister
from tests.redteam.test_account_walls import AGENT, NODE, plain
from tests.support.secured import Secured, nats_config, serving_secured
from tests.support.settling import arriving, without_shares

SIZE = 8 * 1_048_576
OTHERS = "navarch.v1.node.training.n2.event.fault"


async def test_an_agent_that_fills_the_history_removes_only_its_own(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,200 messages of one agent had evicted every fact and dead letter."""
    small = msgspec.structs.replace(EVENTS, bytes_max=SIZE)
    monkeypatch.setattr(flood_watch, "EVENTS", small)
    monkeypatch.setattr(flood_watch, "FACTS_MAX", 40)
    monkeypatch.setattr(flood_watch, "FACTS_KEPT", 10)
    monkeypatch.setattr(flood_watch, "GROWTH_MIN", 20)
    admin = await NatsBus.connect(secured.options("admin"))
    await admin.admin(f"STREAM.UPDATE.{EVENTS.name}", small.config(1))
    await without_shares(admin)
    await admin.publish(OTHERS, b"{}")
    notifier = await NatsBus.connect(secured.options("notifier"))
    watch = StoreWatch(notifier, SystemClock(), FailureRegister(CollectorRegistry()))
    client = await plain(secured, AGENT)
    sent, reported = 0, set[str]()
    while sent < 3 * SIZE:
        wanted = [
            client.request(f"{NODE}.event.{fact}", b"x" * 60_000, timeout=30)
            for fact in ("fault", "registered")
            for _ in range(30)
        ]
        with suppress(nats.errors.Error):
            sent += 60_000 * len(await asyncio.gather(*wanted))
        await arriving(admin)
        reported |= {each.about for each in await watch.look()}
    left = await admin.last(EVENTS.name, OTHERS)
    for each in (client, notifier, admin):
        await each.close()

    assert left is not None
    assert {"node n1"} <= reported


async def test_agents_that_use_up_their_connections_leave_room_for_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is the account's; a server's own was all there was."""
    monkeypatch.setitem(permissions.CONNECTIONS_MAX, "agents", 3)
    directory = nats_config(tmp_path / "config")
    async with serving_secured(directory, tmp_path / "nats") as secured:
        agents = [await plain(secured, AGENT) for _ in range(3)]
        refused = Client()
        with pytest.raises(nats.errors.Error, match="maximum account"):
            await refused.connect(
                secured.url, allow_reconnect=False, **credentials(secured.options(AGENT))
            )
        await refused.close()
        others = [await plain(secured, each) for each in ("pool-manager", "operator")]
        for each in (*agents, *others):
            await each.close()


def test_the_server_soon_forgets_what_was_asked() -> None:
    """The server has 800 bytes for a request: 10,000 reads of a viewer took 8 MB, for two hours.

    Only commands last, which operators and services alone give; a read has one answer.
    """
    found = [each for each in shares() if not each.live]
    lasting = {each.subject for each in found if each.reply_seconds > ANSWER_SECONDS}

    assert {permissions.NODE_COMMANDS} == lasting
    assert all(each.reply_seconds <= 10 for each in found if each.many)
    assert all("DIRECT.GET.*.>" not in each.subject for each in found if each.many)
