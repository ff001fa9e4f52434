"""Checks that pages have what an alert, a warning or an error message refers to."""

import re
from pathlib import Path
from typing import Any, Final, get_args

import pytest
import typer.main

from schemas.enums import AlertKind, BreakerCause
from schemas.fleet_events import FailureKind
from services.cli.app import app
from tests.house.modules import ROOT

NAMED_IN: Final = ("agent", "config", "compose", "deploy", "schemas", "services")
SUFFIXES: Final = {".py", ".yaml", ".yml", ".conf", ".md", ".sh", ".hcl", ".tpl", ".json"}
REFERENCE: Final = re.compile(
    r"docs/(?P<page>[a-z-]+)\.md(?:#(?P<anchor>[\w-]+)|, (?:\"\s*\")?(?P<heading>[A-Z][\w ]+))?"
)
ALERTED: Final = tuple(each for each in get_args(AlertKind) if each != "test")
COMMAND: Final = re.compile(
    r"^(?:[A-Z_]+=\S+ )*navarch(?=\s)((?: [a-z][a-z-]*)*)(.*)$", re.MULTILINE
)


def headings(page: str) -> set[str]:
    """Return the headings of a page of docs/."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return set(re.findall(r"^#+ (.*)$", text, re.MULTILINE))


def anchor_of(heading: str) -> str:
    """Return a heading's anchor as the site and GitHub name it."""
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def test_every_page_and_heading_that_the_product_names_exists() -> None:
    """Pages and headings that code, alert rules, examples and manifests name exist."""
    named = [
        (path.relative_to(ROOT), found)
        for folder in NAMED_IN
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SUFFIXES and path.is_file()
        for found in REFERENCE.finditer(path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 50
    assert sum(bool(found["anchor"] or found["heading"]) for _, found in named) > 15
    missing = []
    for path, found in named:
        if not (ROOT / "docs" / f"{found['page']}.md").exists():
            missing.append((str(path), found[0]))
        elif found["anchor"]:
            if found["anchor"] not in set(map(anchor_of, headings(found["page"]))):
                missing.append((str(path), found[0]))
        elif found["heading"] and found["heading"].strip() not in headings(found["page"]):
            missing.append((str(path), found[0]))
    assert missing == []


@pytest.mark.parametrize(
    ("page", "kinds"),
    [
        ("troubleshooting", (*get_args(FailureKind), *ALERTED)),
        ("incidents", tuple(filter(None, get_args(BreakerCause)))),
    ],
)
def test_every_failure_alert_and_breaker_cause_has_a_row(page: str, kinds: tuple[str, ...]) -> None:
    """The row says what it means and what to do."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row[1])}
    assert sorted(set(kinds) - listed) == []


def commands_of(page: Path) -> list[tuple[list[str], list[str]]]:
    """Each `navarch` command of a page's shell blocks: its words and its options."""
    blocks = re.findall(
        r"^ *```(?:bash|sh)\n(.*?)^ *```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    found = []
    for block in blocks:
        for words, rest in COMMAND.findall(block.replace("\\\n", " ").replace("    ", "")):
            typed = rest.partition(" #")[0].partition(" -- ")[0]
            found.append((words.split(), re.findall(r"(?<!\S)(--[a-z][a-z-]*)", typed)))
    return found


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_every_command_of_a_page_exists(page: Path) -> None:
    """Every command of a page exists with each of its options."""
    wrong = []
    for words, options in commands_of(page):
        command: Any = typer.main.get_command(app)
        known = set()
        for word in words:
            known |= {
                name for each in command.params for name in (*each.opts, *each.secondary_opts)
            }
            if not hasattr(command, "commands"):
                break
            if word not in command.commands:
                wrong.append(f"navarch {' '.join(words)}")
                break
            command = command.commands[word]
        known |= {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        known |= {"--help", "--install-completion"}
        wrong += [f"navarch {' '.join(words)} {each}" for each in options if each not in known]
    assert wrong == []
