"""Reads what the dashboard shows, and compares it with what the command line says."""

import json
from collections.abc import Sequence
from typing import Any, Final

from tests.support import inprocess

SHOWN: Final = """() => {
    const number = text => Number(text.replace(/[^0-9]/g, ""));
    const tiles = {}, pools = {};
    for (const each of document.querySelectorAll("[data-tile]"))
        tiles[each.dataset.tile] = number(each.querySelector("dd").firstChild.textContent);
    for (const row of document.querySelectorAll("#pools tr[data-pool]")) {
        const cells = [...row.cells].map(cell => cell.innerText);
        const [nodes, desired] = cells[2].split(" of ").map(number);
        const [active, healthy, unhealthy, cordoned] = cells.slice(3, 7).map(number);
        pools[row.dataset.pool] = {nodes, desired, active, healthy, unhealthy, cordoned};
    }
    const bars = [...document.querySelectorAll("#bars .is-stop")].map(each => each.innerText);
    return {tiles, pools, bars};
}"""
TILES: Final = {
    "Nodes": "nodes",
    "In service": "active",
    "Healthy": "healthy",
    "Unhealthy": "unhealthy",
    "Cordoned": "cordoned",
}
"""Title of a tile -> the column of `navarch status` that it sums."""
COLUMNS: Final = ("nodes", "desired", "active", "healthy", "unhealthy", "cordoned")
Counts = dict[str, dict[str, int]]
"""Pool -> column -> number."""


async def shown(page: Any) -> dict[str, Any]:
    """Return what the page shows at this moment: tiles, rows of pools, bars."""
    found: dict[str, Any] = await page.evaluate(SHOWN)
    return found


async def said(**variables: str) -> Counts:
    """Return what `navarch status` says of each pool."""
    status, out, err = await inprocess.navarch("status", "-o", "json", **variables)
    assert status in (0, 3), err
    pools = json.loads(out)["pools"]
    return {each["name"]: {key: each[key] for key in COLUMNS} for each in pools}


def contradictions(page: dict[str, Any], readings: Sequence[Counts]) -> list[str]:
    """Return where the page shows what the command line has not said in any of its readings.

    What changed between them may have any value between theirs.
    """
    pools = set().union(*readings)
    found = [f"{page['pools'].keys()} are not {pools}"] if page["pools"].keys() != pools else []
    for pool, row in page["pools"].items():
        seen = [each[pool] for each in readings if pool in each]
        found += _outside(f"pool {pool}", row, seen, {key: key for key in COLUMNS})
    sums = [{key: sum(row[key] for row in each.values()) for key in COLUMNS} for each in readings]
    return found + _outside("tile", page["tiles"], sums, TILES)


def _outside(
    what: str, row: dict[str, int], seen: Sequence[dict[str, int]], named: dict[str, str]
) -> list[str]:
    found = []
    for title, column in named.items():
        values = [each[column] for each in seen] or [-1]
        if not min(values) <= row.get(title, -1) <= max(values):
            found.append(f"{what}, {title}: {row.get(title)}; the command line said {values}")
    return found
