"""The README's walk passes from top to bottom, in its own order, on the fleet that it serves."""

import json
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.cli.test_serve import READY, ROOT, navarch, served
from tests.support.documented_commands import documented
from tests.support.inprocess import eventually

pytestmark = pytest.mark.slow

SERVE: Final = "serve"
BEGINNING: Final = "-…"


def walk() -> list[tuple[str, ...]]:
    """Return what a new user types after `navarch serve`; of a node's name the beginning."""
    typed = [each.words[1:] for each in documented() if each.page == "README.md"]
    served_at = [words[0] for words in typed].index(SERVE)
    return [
        tuple(word.removesuffix("…") if word.endswith(BEGINNING) else word for word in words)
        for words in typed[served_at + 1 :]
    ]


def shipped() -> str:
    """Return the shipped configuration, without its port and its directory."""
    whole = yaml.safe_load((ROOT / "config" / "navarch.yaml").read_text("utf-8"))
    return yaml.safe_dump({key: whole[key] for key in whole.keys() - {"data_dir", "nats"}})


async def test_the_walk_of_the_readme_passes_from_top_to_bottom(tmp_path: Path) -> None:
    """A drained node spent the budget, so its replacement was refused; `why` took no beginning."""
    shown = walk()
    assert {"scale", "drain", "replace", "why", "instances"} <= {words[0] for words in shown}
    async with served(tmp_path / "fleet", shipped()) as fleet:
        await fleet.says(READY)

        async def are_there() -> bool:
            _, out = await navarch("list", "-o", "json", place=fleet.place)
            return [each["status"] for each in json.loads(out)] == ["active", "active"]

        await eventually(are_there)
        for words in shown:
            status, out = await navarch(*words, place=fleet.place)
            assert status == 0, (words, out)
