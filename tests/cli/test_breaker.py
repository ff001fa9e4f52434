"""`navarch breaker` against a real pool-manager: show, open and close."""

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from schemas.fleet_queries import FleetBudgetView, PoolView
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.commands.breaker_commands import fleet_line, next_line, row
from services.pool_manager.service import build
from tests.cli.test_commands import navarch
from tests.pool_manager.fleet import events, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers


async def test_an_operator_shows_opens_and_closes_a_breaker(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """An open breaker lets no unhealthy node be disrupted; closed, the node is replaced."""
    url = server.url
    async with Peers(bus) as peers, Running(url, "pool-manager", build, settings()):
        names = await eventually(settled(bus, 3))
        opened = await navarch("breaker", "open", "training", "--reason", "rack move", url=url)
        await peers.make_unhealthy("training", names[0])
        _, shown, _ = await navarch("breaker", "show", url=url)
        _, out, _ = await navarch("why", names[0], url=url)
        code, data, _ = await navarch("breaker", "show", "training", "-o", "json", url=url)
        status = await navarch("status", url=url)
        begun = len(peers.count("cordon"))
        closed = await navarch("breaker", "close", "--fleet", "--reason", "done", url=url)

        async def replaced() -> bool:
            return bool(await events(bus, "node-replaced"))

        await eventually(replaced)

    assert (0, 0, 0) == (opened[0], closed[0], code)
    assert "no unhealthy node is acted on until an operator closes it" in opened[1]
    assert 0 == begun
    assert "open, by hand" in shown
    assert "rack move" in shown
    assert "training: it stays open until an operator closes it" in shown
    assert "It waits for the breaker, which is open by " in out
    assert "0 of 1" in status[1]
    pool = msgspec.json.decode(data)["pools"][0]
    assert ("open", "operator", True) == (
        pool["breaker"],
        pool["breaker_cause"],
        pool["breaker_forced"],
    )
    assert ["operator"] == [each["breaker_cause"] for each in await events(bus, "breaker-opened")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("close", "--reason", "x"), "name one pool, or give --fleet for all pools"),
        (("close", "training", "--fleet", "--reason", "x"), "name one pool, or give --fleet"),
        (("close", "training"), "--reason"),
        (("open", "training", "--reason", ""), "--reason: Expected `str` of length >= 1"),
        (("open", "nowhere", "--reason", "x"), "there is no pool 'nowhere'"),
        (("show", "nowhere"), "nowhere"),
    ],
)
async def test_an_invalid_request_is_refused_in_one_sentence(
    server: EmbeddedServer, bus: NatsBus, arguments: tuple[str, ...], said: str
) -> None:
    """A pool and a reason are required; an unknown pool is named."""
    async with Peers(bus), Running(server.url, "pool-manager", build, settings(min_nodes=0)):
        code, out, err = await asyncio.wait_for(navarch("breaker", *arguments, url=server.url), 20)
    assert code != 0, out
    assert said in err


NOW = datetime(2026, 1, 1, 12, 5, tzinfo=UTC)
PLAIN = PoolView(
    name="training",
    desired=100,
    nodes=100,
    active=90,
    healthy=80,
    unhealthy=20,
    cordoned=0,
    min_nodes=0,
    max_nodes=100,
    breaker="open",
    breaker_since="2026-01-01T12:00:00Z",
    breaker_reason="20 of 100 nodes are out of service and 20 may be",
    unavailable=20,
    unavailable_limit=20,
    disruptions=20,
    disruptions_limit=50,
    window_seconds=3600,
    awaiting_remediation=7,
)


@pytest.mark.parametrize(
    ("changes", "state", "then"),
    [
        ({}, "open", "when that has passed, one probe is tried"),
        ({"breaker_probe_at": "2026-01-01T12:05:00Z"}, "open", "one probe is tried at 01-01"),
        ({"breaker": "half-open", "breaker_probe": "replace-a-1"}, "half-open", "replace-a-1 is"),
        ({"breaker_forced": True, "breaker_by": "ops"}, "open, by hand", "it stays open until"),
        ({"breaker_cause": "rate"}, "open", "when that has passed, one probe is tried"),
        ({"breaker": "closed", "ramp": 2}, "closed, 2 at once", "when that has passed"),
    ],
)
def test_each_state_names_the_next_step(changes: dict[str, object], state: str, then: str) -> None:
    """The state, the use of the budget, and what happens next."""
    view = msgspec.structs.replace(PLAIN, **changes)
    cells = row(view, NOW)

    assert (state, "20 of 20", "20 of 50 in 1h", "0", "7") == (cells[1], *cells[4:8])
    assert cells[2] == "5m0s"
    assert next_line(view).startswith(f"training: {then}")


def test_the_fleets_budget_is_shown_or_that_it_is_unlimited() -> None:
    """Both counts, or one sentence."""
    used = FleetBudgetView(
        desired=200, unavailable=3, unavailable_limit=50, disruptions=9, window_seconds=3600
    )
    lifted = msgspec.structs.replace(used, lifted=True)

    head = "Of the fleet (200 nodes): 3 of 50 out of service, 9 in 1h disruptions, "
    assert head + "0 resets and reboots." == fleet_line(used)
    assert "the budget of each pool applies" in fleet_line(lifted)
