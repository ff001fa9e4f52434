"""Events from the newest on: each exactly once, selected, and while further ones are stored."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas.event_subjects import Event
from schemas.node_events import Cordoned, Lost, Verdict
from services.bus.memory.memory_bus import MemoryBus
from services.fleet_client.stored_events import SPAN_MIN
from tests.gateway.conftest import NOW, Gateway
from tests.gateway.test_reading import ask, some_events, stored

MANY = 5 * SPAN_MIN + 7


def numbered(first: int, count: int) -> list[Event]:
    """Verdicts about the nodes of two pools, in turn; every hundredth is a cordon."""
    made: list[Event] = []
    for number in range(first, first + count):
        pool = ("serving", "training")[number % 2]
        about: dict[str, Any] = {"id": f"e{number}", "time": NOW, "pool": pool}
        about["node"] = f"{pool}-{number % 6 // 2 + 1}"
        status = "unhealthy" if number % 10 == 0 else "healthy"
        made.append(Cordoned(**about) if number % 100 == 0 else Verdict(**about, status=status))
    return made


async def whole(gateway: Gateway, query: str, *, limit: int = 100) -> list[dict[str, Any]]:
    """Return the events of all pages."""
    found: list[dict[str, Any]] = []
    before = 0
    while True:
        page = await ask(gateway, f"/events/newest?before={before}&limit={limit}{query}")
        assert len(page["items"]) <= limit
        found += page["items"]
        if not page["more"]:
            return found
        before = page["next"]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", "5 4 3 2 1"),
        ("&pool=serving", "3 2"),
        ("&node=training-1", "5 1"),
        ("&type=cordoned&type=lag", "5 4 1"),
        ("&pool=serving&type=lost", "3"),
        ("&type=no-such", ""),
        ("&type=*", ""),
        ("&tone=bad", "4 3"),
        ("&tone=good&tone=plain", "5 2 1"),
        ("&until=2020-01-01T00:00:00Z", ""),
        ("&since=2020-01-01T00:00:00Z&until=2999-01-01T00:00:00Z", "5 4 3 2 1"),
        ("&since=2999-01-01T00:00:00Z", ""),
    ],
)
async def test_the_newest_events_are_selected(
    gateway: Gateway, bus: MemoryBus, query: str, ids: str
) -> None:
    """A pool, a node, kinds, tones and times select them, in pages of any size."""
    await stored(bus, *some_events())
    for limit in (1, 2, 100):
        found = await whole(gateway, query, limit=limit)
        assert ids.split() == [each["event"]["id"] for each in found]


async def test_above_five_thousand_events_the_newest_are_shown(
    gateway: Gateway, bus: MemoryBus
) -> None:
    """The first page has the last hundred, and the pages together have each event once."""
    await stored(bus, *numbered(1, MANY))
    first = await ask(gateway, "/events/newest?since=15m&limit=100")
    assert [each["sequence"] for each in first["items"]] == [*range(MANY, MANY - 100, -1)]
    found = await whole(gateway, "", limit=999)
    assert [each["sequence"] for each in found] == [*range(MANY, 0, -1)]


async def test_pages_stay_while_further_events_are_stored(gateway: Gateway, bus: MemoryBus) -> None:
    """An older page has what it had: nothing moves from one page to the next."""
    await stored(bus, *numbered(1, 300))
    first = await ask(gateway, "/events/newest?limit=100")
    await stored(bus, *numbered(301, 1_500))
    second = await ask(gateway, f"/events/newest?limit=100&before={first['next']}")
    assert [each["sequence"] for each in second["items"]] == [*range(200, 100, -1)]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("&type=cordoned", MANY // 100),
        ("&type=cordoned&pool=serving", MANY // 100),
        ("&type=cordoned&pool=training", 0),
        ("&tone=bad&type=verdict", MANY // 10 - MANY // 100),
        ("&node=training-2", len([e for e in range(1, MANY + 1) if e % 6 == 3])),
    ],
)
async def test_rare_events_are_found_among_many(
    gateway: Gateway, bus: MemoryBus, query: str, count: int
) -> None:
    """All of them, the newest first, although a page may end before it is full."""
    await stored(bus, *numbered(1, MANY))
    found = await whole(gateway, query)
    sequences = [each["sequence"] for each in found]
    assert len(found) == count
    assert sequences == sorted(set(sequences), reverse=True)


async def test_an_end_selects_what_was_stored_before_it(gateway: Gateway, bus: MemoryBus) -> None:
    """The time between two events divides them."""
    await stored(bus, *numbered(1, 3))
    between = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    await stored(bus, Lost(id="later", time=NOW, pool="serving", node="serving-1"))
    assert [3, 2, 1] == [e["sequence"] for e in await whole(gateway, f"&until={between}")]
    assert [4] == [e["sequence"] for e in await whole(gateway, f"&since={between}")]
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    assert len(await whole(gateway, f"&until={ahead}")) == 4


async def test_a_caller_of_some_pools_sees_their_events_alone(
    gateway: Gateway, bus: MemoryBus
) -> None:
    """A page of theirs is as full as another one; a pool of others is refused."""
    await stored(bus, *numbered(1, 40))
    client = gateway.client("scoped-token")
    answer = (await client.get("/api/v1/events/newest?limit=20")).json()
    assert {each["event"]["pool"] for each in answer["items"]} == {"training"}
    assert len(answer["items"]) == 20
    assert (await client.get("/api/v1/events/newest?pool=serving")).status_code == 403
