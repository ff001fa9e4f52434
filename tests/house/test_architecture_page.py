"""docs/architecture.md lists every module, and every path and function that a page names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
UNLISTED = frozenset({"__init__", "__main__"})


def modules_on_page() -> list[str]:
    """Return the modules of the lists: a line with a folder, then one line per module."""
    found, folder = [], ""
    for line in "\n".join(re.findall(r"^```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)).split(
        "\n"
    ):
        if heading := re.match(r"((?:agent|schemas|services)[\w/]*/)(?:\s|$)", line):
            folder = heading[1]
        elif module := re.match(r"  (\w+\.py)\s+\S", line):
            found.append(folder + module[1])
    return found


def test_the_page_lists_every_module_once() -> None:
    """A new, renamed or deleted module changes its line in docs/architecture.md."""
    listed = modules_on_page()
    existing = {
        str(path.relative_to(ROOT))
        for top in ("agent", "schemas", "services")
        for path in (ROOT / top).rglob("*.py")
        if path.stem not in UNLISTED
    }
    assert sorted(existing - set(listed)) == [], "add one line each to docs/architecture.md"
    assert sorted(set(listed) - existing) == [], "remove these lines from docs/architecture.md"
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    "page", ["docs/architecture.md", "docs/follow-one-event.md", "CONTRIBUTING.md", "README.md"]
)
def test_every_path_that_a_page_cites_exists(page: str) -> None:
    """Paths in the text and in the tables are real."""
    text = (ROOT / page).read_text(encoding="utf-8")
    cited = re.findall(
        r"`((?:agent|schemas|services|config|docs|tests|benchmarks|compose|deploy)/[\w/.-]*)`", text
    )
    assert len(cited) > 5
    assert [each for each in cited if not (ROOT / each).exists()] == []


def names_in(path: Path) -> set[str]:
    """Functions, classes and methods of a module."""
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
    """In order, so that a reader finds the one in force; numbers may be left out."""
    text = Path("docs/decisions.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\d+)\. ", text, re.MULTILINE)
    assert headings == [str(number) for number in sorted({int(each) for each in headings})]
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == headings
