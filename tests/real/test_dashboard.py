"""The dashboard in Chromium, over a live fleet: what it shows, and what it changes."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from services.gateway.access_tokens import digest
from tests.cli.test_serve import READY, Served, navarch, served
from tests.real.browser import (
    OPERATOR_TOKEN,
    VIEWER_TOKEN,
    Pages,
    axe_script,
    browser,
    require_browser,
    serious_findings,
    until,
)

require_browser()
pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

CONFIG: Final = f"""
gateway:
  tokens:
    ada: {{sha256: {digest(VIEWER_TOKEN)}, role: viewer}}
    bob: {{sha256: {digest(OPERATOR_TOKEN)}, role: operator}}
providers:
  local: {{type: local, gpu_count: 2}}
pools:
  training:
    provider: local
    instance_type: local
    gpu_count: 2
    min_nodes: 3
    max_nodes: 4
    drain_timeout: 5s
    budget: {{max_unavailable: 3, max_replacements: unlimited}}
budget: {{max_unavailable: 100%, max_replacements: unlimited}}
notifier: {{type: noop}}
agent: {{heartbeat_interval: 1s, heartbeat_ttl: 5s, telemetry_interval: 2s}}
"""
CELL_MS_MAX: Final = 2_000
"""The aim is 100, and 20 to 45 were measured; a machine that tests share may pause for longer."""
HOSTILE: Final = "<img src=x onerror=document.title=1><script>alert(1)</script>&lt;"
UTILIZATION_PLOT: Final = '#panel svg[aria-label^="All nodes since "]'
IN_SERVICE: Final = "[...fleet.nodes.values()].filter(each => each.status === 'active').length >= 3"
WATCH: Final = """name => {
    const { grid, fleet } = document.documentElement.dashboard;
    const stored = {}, shown = {};
    let before = grid.colorAt(name);
    fleet.addEventListener("event", ({detail}) => {
        if (detail.nodes.includes(name)) stored[detail.view.kind] ??= Date.parse(detail.view.time);
    });
    const look = () => {
        const place = grid.cell(name);
        if (place && grid.colorAt(name) !== before) {
            before = grid.colorAt(name);
            shown[place.condition] ??= Date.now();
        }
        requestAnimationFrame(look);
    };
    look();
    window.watched = { stored, shown };
}"""


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve a fleet with three nodes in service."""
    async with served(tmp_path / "fleet", CONFIG) as found:
        await found.says(READY)
        yield found


@pytest.fixture
async def pages(fleet: Served) -> AsyncIterator[Pages]:
    """Pages of its gateway; their scripts may not complain."""
    async with browser() as opened:
        made = Pages(opened, fleet.file()["http"]["gateway"])
        yield made
    assert made.complaints == []


async def fall_off_the_bus(fleet: Served, node: str) -> None:
    """Write the driver's line, with markup in the name of the process."""
    log = fleet.place / "data" / "local" / node / "kmsg"
    text = f"NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name={HOSTILE}, GPU has fallen off the bus."
    microseconds = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000
    line = f"2,{microseconds},{microseconds},-;{text}\n"
    with log.open("a") as file:
        file.write(line)


async def names(page: Any) -> list[str]:
    """The nodes that the page has."""
    listed = "[...document.documentElement.dashboard.fleet.nodes.keys()].sort()"
    found: list[str] = await page.evaluate(listed)
    return found


async def test_a_node_fails_and_is_replaced_before_the_viewers_eyes(
    fleet: Served, pages: Pages, record_property: Any
) -> None:
    """A failed node's cell changes at once with the event; its saga and its replacement appear."""
    page = await pages.open(VIEWER_TOKEN)
    await until(page, IN_SERVICE)
    before = await names(page)
    failing = before[0]
    await page.evaluate(WATCH, failing)
    await fall_off_the_bus(fleet, failing)
    await until(page, "watched.shown.unhealthy || watched.shown.leaving")
    watched = await page.evaluate("watched")
    await page.wait_for_selector(".saga")
    assert failing in await page.inner_text("#sagas")
    took = min(watched["shown"].values()) - watched["stored"]["verdict"]
    record_property("event_to_cell_ms", took)
    print(f"from the event to the changed cell: {took} ms")  # noqa: T201
    await until(page, "!fleet.nodes.has(name)", failing)
    await until(page, IN_SERVICE)
    assert len(set(await names(page)) - set(before)) == 1
    await until(page, "fleet.sagas.size === 0")
    assert HOSTILE in await page.inner_text("#events")
    assert await page.query_selector("#events img, #events script") is None
    assert took <= CELL_MS_MAX


async def test_an_operator_drains_a_node_and_a_viewer_cannot(pages: Pages) -> None:
    """The dry run's gates come first, then the saga; a viewer has no buttons and is refused."""
    page = await pages.open(OPERATOR_TOKEN)
    await until(page, IN_SERVICE)
    node = (await names(page))[0]
    viewers = await pages.open(VIEWER_TOKEN, f"/#/node/{node}")
    await viewers.wait_for_selector("#panel .gpu")
    assert await viewers.query_selector("#panel [data-verb]") is None
    refused = await viewers.evaluate(
        """async name => (await fetch(`/api/v1/nodes/${name}/drain`, {method: "POST",
        headers: {Authorization: `Bearer ${sessionStorage.getItem("navarch-token")}`}})).status""",
        node,
    )
    assert refused == 403
    await page.evaluate("name => { location.hash = `#/node/${name}`; }", node)
    await page.click('#panel [data-verb="drain"]')
    await page.wait_for_selector("#change .gates li")
    assert "no saga open" in await page.inner_text("#change .gates")
    await page.fill("#change [name=reason]", HOSTILE)
    await page.click("#change [type=submit]")
    await page.wait_for_selector("#change .notice.is-good a, #change p a")
    assert "accepted" in await page.inner_text("#change")
    await page.click("#change .buttons button")
    for each in (page, viewers):
        await until(each, "fleet.nodes.get(name).drained", node)
        await until(each, "grid.cell(name).condition === 'cordoned'", node)
        await until(each, "document.querySelector('#panel').innerText.includes('drained')")
        assert HOSTILE in await each.inner_text("body")
        assert await each.query_selector("img[src=x]") is None
        assert await each.title() == f"{node} · Navarch"


async def test_the_page_goes_on_after_its_gateway_was_killed(fleet: Served, pages: Pages) -> None:
    """Events of the meantime are shown, each once; the page is not loaded again."""
    page = await pages.open(OPERATOR_TOKEN)
    await until(page, IN_SERVICE)
    node = (await names(page))[0]
    await page.evaluate("window.same = true")
    os.kill(fleet.file()["pids"]["gateway"], signal.SIGKILL)
    status, out = await navarch("cordon", node, place=fleet.place)
    assert status == 0, out
    await until(page, "fleet.nodes.get(name).cordoned", node)
    await page.wait_for_selector(".link-state.is-live")
    sequences = await page.evaluate(
        "document.documentElement.dashboard.fleet.events.map(each => each.sequence)"
    )
    assert sequences == sorted(set(sequences))
    assert await page.evaluate("window.same")


async def test_the_grid_is_used_without_a_mouse(pages: Pages) -> None:
    """Arrow keys name each node, Enter opens it, Escape returns; so does a row of the table."""
    page = await pages.open(VIEWER_TOKEN)
    await until(page, IN_SERVICE)
    first, second, *_ = await names(page)
    await page.focus("#grid")
    await page.keyboard.press("ArrowRight")
    assert (await page.text_content("#grid-said")).startswith(f"{second}: Healthy, pool training")
    await page.keyboard.press("Home")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("#panel .gpu")
    assert await page.inner_text("#panel-title") == first
    await page.keyboard.press("Escape")
    await page.wait_for_selector("#panel", state="hidden")
    await until(page, "document.activeElement.id === 'grid'")
    await page.fill("#find", second)
    await page.click("#as-table")
    await until(page, "document.querySelectorAll('#node-table tbody tr').length === 1")
    await page.focus("#node-table tbody a")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("#panel .gpu")
    assert await page.inner_text("#panel-title") == second


async def test_axe_finds_nothing_serious(pages: Pages, tmp_path: Path) -> None:
    """No serious finding is in sign-in, overview, table, panels and dialog, in any look.

    The looks are light, dark, and as wide as a phone, without motion: while a panel fades in, its
    colours are not yet the ones that stay.
    """
    axe = await axe_script(tmp_path)
    found: list[str] = []
    still = {"reduced_motion": "reduce"}
    looks: tuple[dict[str, Any], ...] = (
        {"color_scheme": "light", "viewport": {"width": 1400, "height": 900}, **still},
        {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}, **still},
    )
    for look in looks:
        blank = await pages.blank(**look)
        await blank.wait_for_selector("#token")
        found += await serious_findings(blank, axe)
        page = await pages.open(OPERATOR_TOKEN, **look)
        await until(page, IN_SERVICE)
        await page.wait_for_selector(".event")
        found += await serious_findings(page, axe)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.click("#as-table")
        await page.wait_for_selector("#node-table tbody tr")
        found += await serious_findings(page, axe)
        node = (await names(page))[0]
        for path in ("pool/training", f"node/{node}", f"saga/scale-up-{node}"):
            await page.evaluate("path => { location.hash = `#/${path}`; }", path)
            await page.wait_for_selector("#panel .log li")
            found += await serious_findings(page, axe)
        await page.evaluate("path => { location.hash = `#/${path}`; }", f"node/{node}")
        await page.click('#panel [data-verb="replace"]')
        await page.wait_for_selector("#change .gates li")
        found += await serious_findings(page, axe)
    assert found == []


async def test_panels_show_what_was_measured_what_it_cost_and_the_evidence(
    fleet: Served, pages: Pages
) -> None:
    """Panels plot a node's samples and its pool's instances.

    Kernel lines of the failed node are shown.
    """
    page = await pages.open(VIEWER_TOKEN)
    await until(page, IN_SERVICE)
    failing, other = (await names(page))[:2]
    await fall_off_the_bus(fleet, failing)
    await page.goto(f"{page.url.partition('#')[0]}#/node/{failing}")
    await page.wait_for_selector("#panel .lines", timeout=60_000)
    assert HOSTILE in await page.inner_text("#panel .lines")
    await page.goto(f"{page.url.partition('#')[0]}#/node/{other}")
    await page.wait_for_selector("#panel .plot path.line", state="attached", timeout=60_000)
    assert "Utilization" in await page.inner_text("#panel .plots")
    await page.goto(f"{page.url.partition('#')[0]}#/pool/training")
    await page.wait_for_selector("#panel .plot path.line", state="attached", timeout=60_000)
    assert "Instances" in await page.inner_text("#panel .plots")
    shown = (await page.inner_text("#panel")).casefold()
    assert "what it may launch" in shown
    assert "local, on-demand" in await page.inner_text("#panel table")
    assert "utilization" in shown
    async with asyncio.timeout(120):  # two points: a minute of samples
        while not await page.query_selector(UTILIZATION_PLOT):
            for place in (f"node/{other}", "pool/training"):
                await page.goto(f"{page.url.partition('#')[0]}#/{place}")
                await page.wait_for_selector("#panel .plots", state="attached")
    if folder := os.environ.get("NAVARCH_SCREENSHOTS"):
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            for kind, name in (("node", other), ("pool", "training"), ("node", failing)):
                await page.goto(f"{page.url.partition('#')[0]}#/{kind}/{name}")
                await page.wait_for_timeout(1500)
                await page.screenshot(path=f"{folder}/{kind}-{name[:10]}-{scheme}.png")
