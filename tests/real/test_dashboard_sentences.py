"""The dashboard over `navarch simulator fleet`: numbers and sentences are the command line's."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from services.gateway.gateway_start import PORT_VARIABLE
from tests.cli.test_serve import ROOT, environment
from tests.real.browser import Pages, browser, require_browser, until
from tests.real.page_truth import contradictions, said, shown
from tests.support import inprocess

require_browser()
pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

NODES: Final = 24
SIMULATED: Final = (
    *("simulator", "fleet", "--nodes", str(NODES), "--boot-seconds", "0.5"),
    *("--faults-per-hour", "3600"),
)
BUS: Final = re.compile(r"the bus is (nats://\S+), its")
DASHBOARD: Final = re.compile(r"its dashboard is (http://\S+)/")
ALIKE_SECONDS_MAX: Final = 40.0
COUNTED: Final = re.compile(r"(?:Nothing waits|\d+ actions? waits?)\b.*?\.(?= To go on)")
"""What of the sentence about a stop changes while it is read."""
EXPLAINED: Final = (
    "[...document.querySelectorAll('#panel .why-summary, #panel .why-now')]"
    ".map(each => each.textContent)"
)


@asynccontextmanager
async def simulated(place: Path) -> AsyncIterator[tuple[str, str]]:
    """Run the fleet until its nodes are in service; the addresses of bus and dashboard."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *SIMULATED),
        stdout=asyncio.subprocess.PIPE,
        env=environment(TMPDIR=str(place), **{PORT_VARIABLE: "0"}),
        cwd=ROOT,
    )
    assert process.stdout is not None
    said = ""
    try:
        async with asyncio.timeout(90):
            while "nodes in service\n" not in said or " of " in said.splitlines()[-1]:
                said += (await process.stdout.readline()).decode()
        [bus], [dashboard] = BUS.findall(said), DASHBOARD.findall(said)
        yield bus, dashboard
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


async def explained(name: str, bus: str) -> list[str]:
    """Return the sentences of `navarch why`: the summary, and what is now."""
    status, out, err = await inprocess.navarch("why", name, NAVARCH_NATS_URL=bus, TZ="UTC")
    assert status == 0, err
    lines = out.splitlines()
    return [lines[0], *(each[7:] for each in lines if each.startswith("Now:   "))]


async def alike(page: Any, name: str, bus: str) -> tuple[list[str], list[str]]:
    """Return both explanations once they are the same, or the last that were not."""
    theirs, ours = [""], []
    with suppress(TimeoutError):
        async with asyncio.timeout(ALIKE_SECONDS_MAX):
            while theirs != ours:
                ours = await explained(name, bus)
                theirs = await page.evaluate(EXPLAINED)
    return theirs, ours


async def test_a_fleet_under_faults_reads_the_same_in_both(tmp_path: Path) -> None:
    """Counts under load, a stop's sentence, and why a node and its pool wait, word for word."""
    async with simulated(tmp_path) as (bus, url), browser() as opened:
        pages = Pages(opened, url)
        page = await pages.blank()
        await until(page, "fleet.nodes.size > 0")
        own = {"NAVARCH_NATS_URL": bus}
        readings = [await said(**own) for _ in range(8)]
        assert contradictions(await shown(page), readings) == []

        stop = ("stop", "--reason", "a wrong image", "--running")
        assert (await inprocess.navarch(*stop, **own))[0] == 0
        _, listed, _ = await inprocess.navarch("list", "-o", "json", **own)
        node = next(each["id"] for each in json.loads(listed) if each["health"] == "healthy")
        assert (await inprocess.navarch("cordon", node, "--reason", "a test", **own))[0] == 0
        await page.wait_for_selector(".bar-across.is-stop")
        _, out, _ = await inprocess.navarch("status", **own)
        [line] = [each for each in out.splitlines() if each.startswith("STOPPED")]
        [bar] = (await shown(page))["bars"]
        assert COUNTED.sub("", bar) == COUNTED.sub("", line)
        for kind, name in (("node", node), ("pool", "simulated")):
            await page.evaluate("path => { location.hash = path; }", f"#/{kind}/{name}")
            await page.wait_for_selector("#panel .why-summary")
            theirs, ours = await alike(page, name, bus)
            assert theirs == ours
            assert len(ours) > 1
        assert pages.complaints == []
