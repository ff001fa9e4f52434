"""The README's walk passes from top to bottom, in its own order, in a fresh clone."""

import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from services.primitives.free_ports import free_ports
from tests.cli.test_serve import READY, ROOT, Served, serving
from tests.support.documented_commands import documented
from tests.support.inprocess import eventually
from tests.support.output_shapes import Shape, differences, heading, overlong, shape
from tests.support.terminals import STYLES, in_terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVE: Final = "serve"
BEGINNING: Final = "-…"
CONFIG: Final = "config/navarch.yaml"
TERMINAL: Final = 80
BUS_PORT: Final = "4222"
OF_A_REAL_FLEET: Final = (
    "INDEX | UUID | SERIAL | PCI | NAME | HEALTH | CORDONED",
    "TIME | FAULT | GPU | RESULT | RULE | MESSAGE",
    "SAGA | POOL | KIND | NODE | NEW_NODE | STEP | AGE | REASON",
    "STEP | AT MOST | WAITS FOR",
)
"""Headings that the small fleet of the documented commands has no rows for."""
SHAPES: Final = ROOT / "tests/cli/documented_shapes.json"


def walk() -> list[tuple[str, ...]]:
    """Return what a new user types after `navarch serve`; of a node's name the beginning."""
    typed = [each.words[1:] for each in documented() if each.page == "README.md"]
    served_at = [words[0] for words in typed].index(SERVE)
    return [
        tuple(word.removesuffix("…") if word.endswith(BEGINNING) else word for word in words)
        for words in typed[served_at + 1 :]
    ]


def fresh_clone(place: Path) -> Path:
    """Clone this checkout as it is committed; only the bus has a port of its own."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    clone = place / "navarch"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    config = clone / CONFIG
    text = config.read_text("utf-8")
    assert BUS_PORT in text
    config.write_text(text.replace(BUS_PORT, str(free_ports(1)[0])), "utf-8")
    return clone


@asynccontextmanager
async def served_clone(place: Path) -> AsyncIterator[Served]:
    """Serve the shipped configuration as the README says; end it."""
    clone = fresh_clone(place)
    async with serving(clone, CONFIG, cwd=clone) as fleet:
        yield fleet


def known_headings() -> Shape:
    """Return the headings of all tables that documented commands print."""
    shapes = msgspec.json.decode(SHAPES.read_bytes(), type=dict[str, Shape])
    return (*OF_A_REAL_FLEET, *(each for one in shapes.values() for each in one if " | " in each))


async def test_the_walk_of_the_readme_passes_from_top_to_bottom(tmp_path: Path) -> None:
    """A drained node spent the budget, so its replacement was refused; `why` took no beginning.

    Each command is typed in a terminal of 80 columns. Its tables have the known headings, and no
    line is longer that could have been broken.
    """
    shown = walk()
    assert {"scale", "drain", "replace", "why", "instances"} <= {words[0] for words in shown}
    known = known_headings()
    async with served_clone(tmp_path) as fleet:
        await fleet.says(READY)

        async def type_in(*words: str) -> tuple[int, str]:
            status, out = await in_terminal(*words, place=fleet.place, NAVARCH_CONFIG=CONFIG)
            return status, STYLES.sub("", out)

        async def are_there() -> bool:
            _, out = await type_in("list", "-o", "json")
            return [each["status"] for each in json.loads(out)] == ["active", "active"]

        await eventually(are_there)
        for words in shown:
            status, out = await type_in(*words)
            assert (status, overlong(out, TERMINAL)) == (0, []), (words, out)
            titles = tuple(each for each in shape(out) if " | " in each)
            assert differences(titles, known) == [], (words, out)
            assert words[0] != "list" or "json" in words or heading(out.splitlines()[0]), out


def test_the_shipped_configuration_names_the_port_once() -> None:
    """A clone's bus has another port, since tests run side by side."""
    assert len(re.findall(BUS_PORT, (ROOT / CONFIG).read_text("utf-8"))) == 1
