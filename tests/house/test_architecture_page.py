"""The pages about the code: every path and function that one names exists, modules are listed."""

import ast
import re
from pathlib import Path

import pytest

from docs.site_pages import modules, modules_page

ROOT = Path(__file__).parents[2]


def test_the_page_of_modules_has_one_line_for_each() -> None:
    """The page is made from the first lines of the modules, each a sentence or a name."""
    lines = re.findall(r"^\| `\w+\.py` \| (.*) \|$", modules_page(), re.MULTILINE)
    assert len(lines) == len(modules()) > 600
    assert [each for each in lines if not re.match(r"\S.*[.:?)]$", each)] == []


@pytest.mark.parametrize(
    "page", ["docs/architecture.md", "docs/follow-one-event.md", "CONTRIBUTING.md", "README.md"]
)
def test_every_path_that_a_page_cites_exists(page: str) -> None:
    """Paths in the text and in the tables are real."""
    text = (ROOT / page).read_text(encoding="utf-8")
    cited = re.findall(
        r"`((?:agent|schemas|services|config|docs|tests|benchmarks|examples|compose|deploy)/[\w/.-]*)`",
        text,
    )
    assert len(cited) > 5
    assert [each for each in cited if not (ROOT / each).exists()] == []


def names_in(path: Path) -> set[str]:
    """Return the functions, classes and methods of a module."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for each in targets if isinstance(each, ast.Name)}
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
    return found


def test_every_function_that_follow_one_event_names_exists() -> None:
    """A reader who follows the page finds each function and class in the file it names."""
    page = (ROOT / "docs/follow-one-event.md").read_text(encoding="utf-8")
    cited = re.findall(r"`([\w/]+\.py)::([\w.]+)`", page)
    assert len(cited) >= 40
    assert [f"{path}::{name}" for path, name in cited if name not in names_in(ROOT / path)] == []


def test_the_table_of_decisions_lists_each() -> None:
    """Decisions are listed in order, so that a reader finds the one in force."""
    text = Path("docs/decisions.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\d+)\. ", text, re.MULTILINE)
    assert headings == [str(number) for number in sorted({int(each) for each in headings})]
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == headings
