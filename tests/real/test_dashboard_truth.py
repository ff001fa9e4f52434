"""The dashboard says what the command line says: loading, under load, stopped and cut off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

import httpx
import msgspec
import pytest

from schemas.event_subjects import event_subject
from schemas.fleet_events import AutomationStopped
from schemas.messages import encode
from schemas.node_events import Cordoned, Verdict
from schemas.stops import Stop
from services.bus.memory.memory_bus import MemoryBus
from services.primitives.clock import SystemClock
from tests.real.browser import VIEWER_TOKEN, Pages, browser, require_browser, until
from tests.real.page_truth import contradictions, said, shown
from tests.real.test_wide_dashboard import NODES, WideFleet, gateway_of
from tests.support import inprocess

require_browser()
pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

PER_SECOND: Final = 100
ROUNDS: Final = 3
CORDONS: Final = 40
SETTLED_SECONDS_MAX: Final = 30.0
LOOK_SECONDS: Final = 0.25
READINGS: Final = 4
"""Of the command line, while the fleet changes."""
STOP: Final = Stop(
    reason="a wrong image", by="ada", since=datetime(2026, 11, 29, 21, 4, tzinfo=UTC)
)
OLD_TILE: Final = (
    'tile("Cordoned", number(sums.cordoned))',
    'tile("Cordoned", number(countsOf(fleet.nodes.values()).cordoned))',
)
"""The tile as it was: it left out cordoned nodes that are also unhealthy."""
SEQUENCES: Final = (
    "[...document.querySelectorAll('#events .event')].map(each => Number(each.dataset.sequence))"
)


@asynccontextmanager
async def wide() -> AsyncIterator[tuple[WideFleet, str, MemoryBus, Pages]]:
    """Serve 10,000 nodes, and open a browser."""
    fleet = WideFleet()
    async with gateway_of(fleet) as (url, bus), browser() as opened:
        pages = Pages(opened, url)
        yield fleet, url, bus, pages
        assert pages.complaints == []


async def put(bus: MemoryBus, event: Verdict | Cordoned | AutomationStopped) -> None:
    """Store an event."""
    await bus.publish(event_subject(event), encode(event), msg_id=event.id)


async def load(fleet: WideFleet, bus: MemoryBus, stopping: asyncio.Event, first: int) -> int:
    """Change a hundred nodes a second until stopped; return the number of the next change."""
    clock, number = SystemClock(), first
    while not stopping.is_set():
        change = fleet.cordon if number % CORDONS == 0 else fleet.verdict
        await put(bus, change(number, clock))
        number += 1
        await asyncio.sleep(1 / PER_SECOND)
    return number


async def differences(page: Any, own: dict[str, str]) -> list[str]:
    """Return where page and command line differ at rest, once the page had time to read."""
    found = ["not compared"]
    with suppress(TimeoutError):  # what stays is a contradiction
        async with asyncio.timeout(SETTLED_SECONDS_MAX):
            while found:
                found = contradictions(await shown(page), [await said(**own)])
                await asyncio.sleep(LOOK_SECONDS if found else 0)
    return found


async def under_load(
    page: Any, own: dict[str, str], fleet: WideFleet, bus: MemoryBus, first: int
) -> tuple[int, list[str]]:
    """Compare while the fleet changes; the number of the next change, and the differences.

    The page shows a moment between the reading before the load and the one after it was looked at.
    """
    readings, stopping = [await said(**own)], asyncio.Event()
    loading = asyncio.create_task(load(fleet, bus, stopping, first))
    readings += [await said(**own) for _ in range(READINGS)]
    found = await shown(page)
    readings.append(await said(**own))
    stopping.set()
    return await loading, contradictions(found, readings)


async def compared(page: Any, url: str, fleet: WideFleet, bus: MemoryBus) -> list[str]:
    """Compare under load and at rest, a few times; return every difference."""
    own = {"NAVARCH_SERVER": url, "NAVARCH_AUTH_TOKEN": VIEWER_TOKEN}
    number, found = 1, await differences(page, own)
    for _ in range(ROUNDS):
        number, differ = await under_load(page, own, fleet, bus, number)
        found += [*differ, *await differences(page, own)]
    assert number > PER_SECOND
    return found


async def test_the_page_says_what_the_command_line_says_under_load() -> None:
    """Tiles and pools have the numbers of `navarch status`, at 100 events a second."""
    async with wide() as (fleet, url, bus, pages):
        page = await pages.open(VIEWER_TOKEN)
        await until(page, f"fleet.nodes.size === {NODES}")
        assert await compared(page, url, fleet, bus) == []


async def test_a_planted_contradiction_is_found() -> None:
    """A page whose tile leaves out cordoned nodes that are also unhealthy differs, at rest too."""
    async with wide() as (fleet, url, bus, pages):
        page = await pages.blank()
        async with httpx.AsyncClient() as client:
            script = (await client.get(f"{url}/dashboard/overview.js")).text
        assert OLD_TILE[0] in script
        changed = script.replace(*OLD_TILE)

        async def plant(route: Any) -> None:
            await route.fulfill(body=changed, content_type="text/javascript")

        await page.route("**/dashboard/overview.js", plant)
        await page.reload()
        await pages.sign_in(page, VIEWER_TOKEN)
        await until(page, f"fleet.nodes.size === {NODES}")
        await put(bus, fleet.cordon(1, SystemClock()))
        found = await differences(page, {"NAVARCH_SERVER": url, "NAVARCH_AUTH_TOKEN": VIEWER_TOKEN})
        assert [each.partition(":")[0] for each in found] == ["tile, Cordoned"]


async def test_a_page_that_loads_shows_that_and_no_numbers() -> None:
    """No tile and no green is there until every node is read; the page says that it reads."""
    async with wide() as (_, __, ___, pages):
        page = await pages.blank()
        goes_on = asyncio.Event()

        async def hold(route: Any) -> None:
            await goes_on.wait()
            await route.continue_()

        await page.route("**/api/v1/nodes?*", hold)
        await page.fill("#token", VIEWER_TOKEN)
        await page.click("#sign-in button")
        await page.wait_for_selector("#pools tr[data-pool]")
        assert await page.inner_text("#summary") == "Reading the fleet…"
        assert await page.query_selector("[data-tile], .tile.is-good") is None
        assert await page.get_attribute("#main", "aria-busy") == "true"
        goes_on.set()
        await page.wait_for_selector("[data-tile=Nodes]")
        assert await page.get_attribute("#main", "aria-busy") == "false"


async def test_a_lost_connection_is_a_bar_across_the_page() -> None:
    """The bar is as wide as the page, says since when, is above a panel, and goes with the loss."""
    async with wide() as (fleet, _, __, pages):
        page = await pages.open(VIEWER_TOKEN)
        await until(page, f"fleet.nodes.size === {NODES}")
        await page.evaluate("name => { location.hash = `#/node/${name}`; }", fleet.sorted[0].id)
        await page.wait_for_selector("#panel .facts")
        await page.context.set_offline(True)
        await page.wait_for_selector(".bar-across.is-lost")
        text = await page.inner_text(".bar-across.is-lost")
        assert text.startswith("Connection lost. What is shown is from before ")
        assert " UTC, and may have changed." in text
        width, bottom, top = await page.evaluate(
            """() => { const bar = document.querySelector(".bar-across").getBoundingClientRect();
            return [bar.width - document.documentElement.clientWidth, bar.bottom,
                    document.querySelector("#panel").getBoundingClientRect().top]; }"""
        )
        assert (width, bottom <= top) == (0, True)
        await page.context.set_offline(False)
        await page.wait_for_selector(".bar-across.is-lost", state="detached")


async def test_what_is_no_longer_read_says_how_old_it_is() -> None:
    """Pools that cannot be read keep their numbers, with their age; the rest has none."""
    async with wide() as (_, __, ___, pages):
        page = await pages.open(VIEWER_TOKEN)
        await until(page, f"fleet.nodes.size === {NODES}")
        ages = """async seconds => { const bars = await import("/dashboard/bars.js");
            bars.showAges(document.documentElement.dashboard.fleet, Date.now() + seconds * 1000);
            return document.querySelector("#pools-title [data-source]").textContent; }"""
        assert [await page.evaluate(ages, each) for each in (10, 25)] == ["", ""]
        assert await page.evaluate(ages, 90) in ("1 min old", "2 min old")


async def test_a_stop_is_shown_on_every_view() -> None:
    """The overview, a node and a pool have the command line's own sentence, until it ends."""
    async with wide() as (fleet, url, bus, pages):
        page = await pages.open(VIEWER_TOKEN)
        await until(page, f"fleet.nodes.size === {NODES}")
        fleet.stops = (STOP,)
        now = SystemClock().now()
        facts = {"scope": "fleet", "reason": STOP.reason, "since": STOP.since}
        stopped = AutomationStopped(id="stop", time=now, status="stopped", **facts)
        await put(bus, stopped)
        own = {"NAVARCH_SERVER": url, "NAVARCH_AUTH_TOKEN": VIEWER_TOKEN}
        _, out, _ = await inprocess.navarch("status", **own)
        [line] = [each for each in out.splitlines() if each.startswith("STOPPED")]
        for path in ("", f"node/{fleet.sorted[0].id}", "pool/training"):
            await page.evaluate("path => { location.hash = `#/${path}`; }", path)
            await page.wait_for_selector(".bar-across.is-stop")
            assert (await shown(page))["bars"] == [line]
            covered = "document.elementFromPoint(innerWidth - 9, 9).className"
            assert "is-stop" in await page.evaluate(covered)
        fleet.stops = ()
        await put(bus, msgspec.structs.replace(stopped, id="resume", status="resumed"))
        await page.wait_for_selector(".bar-across.is-stop", state="detached")


async def test_events_are_paged_and_filtered_under_load() -> None:
    """The first page has the newest; an older page stays; each filter has what it names alone."""
    async with wide() as (fleet, _, bus, pages):
        clock = SystemClock()
        for number in range(1, 5_501):
            await put(bus, fleet.verdict(number, clock))
        await put(bus, fleet.cordon(1, clock))
        page = await pages.open(VIEWER_TOKEN)
        await until(page, "document.querySelectorAll('#events .event').length === 100")
        assert await page.evaluate(SEQUENCES) == [*range(5_501, 5_401, -1)]
        stopping = asyncio.Event()
        loading = asyncio.create_task(load(fleet, bus, stopping, 6_000))
        await until(page, f"{SEQUENCES}[0] > 5600")
        newest = await page.evaluate(SEQUENCES)
        assert newest == [*range(newest[0], newest[0] - 100, -1)]
        await page.click("[data-page=older]")
        await page.wait_for_selector("[data-page=newer]:not(:disabled)")
        await until(page, "document.querySelectorAll('#events .event').length === 100")
        older = await page.evaluate(SEQUENCES)
        await asyncio.sleep(1)
        assert older == await page.evaluate(SEQUENCES) == [*range(older[0], older[0] - 100, -1)]
        assert "newer event" in await page.inner_text("#event-pager")
        await page.fill("#event-filters [name=kind]", "cordoned")
        await page.press("#event-filters [name=kind]", "Tab")
        titles = "[...document.querySelectorAll('#events .title')].map(each => each.textContent)"
        await until(page, f"{titles}.length > 1 && {titles}.every(each => each === 'cordoned')")
        stopping.set()
        await loading
        await page.fill("#event-filters [name=kind]", "")
        node = fleet.sorted[7_919].id
        await page.fill("#event-filters [name=node]", node)
        await page.select_option("#event-filters [name=tone]", "bad")
        about = "[...document.querySelectorAll('#events .about a:first-child')]"
        await until(page, f"{about}.length && {about}.every(each => each.text === name)", node)
        assert await page.query_selector("#events .event:not(.is-bad)") is None
        await page.fill("#event-filters [name=node]", "training-1")
        await page.press("#event-filters [name=node]", "Tab")
        await page.wait_for_selector("#events .empty:has-text('nodes begin with training-1')")
