"""The words that CONTRIBUTING.md bans are used in no code, message, YAML or documentation."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
BANNED_IN: Final = "CONTRIBUTING.md"
SEARCHED: Final = (
    *(
        "agent",
        "schemas",
        "services",
        "tests",
        "benchmarks",
        "examples",
        "config",
        "compose",
        "deploy",
    ),
    *("docs", ".ci", "README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml"),
)
SUFFIXES: Final = frozenset(
    {".py", ".md", ".yaml", ".yml", ".toml", ".json", ".html", ".js", ".css", ".c", ".h", ".sh"}
    | {".service", ".hcl", ""}
)
EXEMPT: Final = (
    *("tests/agent/data/", "tests/agent/outputs/", "tests/provisioner/data/"),
    "tests/house/test_vocabulary.py",
)
"""Output of other programs, which use their own words; and this file."""

ALLOWED: Final = re.compile(
    r"\b(?:can|cannot|could|can't|to) tell\b"
    r"|\btell(?:s|ing)? (?:[\w'`-]+\s+){1,8}(?:apart|from)\b|\btell apart\b"
    r"|\.tell\(\)"
    r"|(?<![a-z])stand[-_ ]ins?(?![a-z])",
    re.IGNORECASE,
)
"""Uses of a banned word in another sense: recognising, a file position, a stand-in."""
PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""One part of a snake-case or camel-case name, or one word of a sentence."""

GAP: Final = r"(?:\s+(?:#\s*)?|_)"
"""Between the words of a phrase: a space, a line break in a comment, or an underscore."""


def banned_words() -> dict[str, str]:
    """Return the replacement of each word or phrase, from CONTRIBUTING.md's last table."""
    table = (ROOT / BANNED_IN).read_text(encoding="utf-8").rpartition("\n|---|---|\n")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    return {
        word.strip(): replacement
        for words, replacement in rows
        for word in re.sub(r"\(.*?\)", "", words).split(",")
    }


def searched_files() -> Iterator[tuple[str, str]]:
    """Yield every file of ours: its path from the root, and its text with the path before it."""
    for start in SEARCHED:
        top = ROOT / start
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in SUFFIXES and path.is_file() and not name.startswith(EXEMPT):
                text = path.read_text(encoding="utf-8")
                if name == BANNED_IN:
                    text = text.rpartition("\n|---|---|\n")[0]
                yield name, text


def findings(name: str, text: str, banned: dict[str, str]) -> list[str]:
    """Banned words of one file, as `file:line: word -> replacement`."""
    found: list[tuple[int, str]] = [
        (0, word) for part in PART.findall(name) if (word := part.lower()) in banned
    ]
    lowered = text.lower()
    phrases = [each for each in banned if " " in each and each.split()[0] in lowered]
    used = {part.lower() for part in set(PART.findall(text))}
    if not (phrases or found) and banned.keys().isdisjoint(used):
        return []
    masked = ALLOWED.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    found += [
        (masked.count("\n", 0, match.start()) + 1, word)
        for match in PART.finditer(masked)
        if (word := match.group().lower()) in banned
    ]
    for phrase in phrases:
        pattern = rf"(?<![a-z]){phrase.replace(' ', GAP)}(?![a-z])"
        found += [
            (masked.count("\n", 0, match.start()) + 1, phrase)
            for match in re.finditer(pattern, masked, re.IGNORECASE)
        ]
    return [f"{name}:{line}: {word} -> {banned[word]}" for line, word in sorted(found)]


def test_no_banned_word_is_used() -> None:
    """Identifiers, file names, prose, messages, YAML and Markdown use the glossary."""
    banned = banned_words()
    found = [finding for name, text in searched_files() for finding in findings(name, text, banned)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("is_sick = True", ["sick"]),
        ("class ToldNode: ...", ["told"]),
        ("TROUBLE = 1", ["trouble"]),
        ("once in\n    # effect", ["in effect"]),
        ("test_done_in_effect", ["in effect"]),
        ("heartbeat, still, standby, understand, HeartbeatRecord, a stand-in", []),
        ("the log cannot tell; to tell them apart; file.tell()", []),
    ],
)
def test_a_part_of_a_name_is_found_and_a_longer_word_is_not(text: str, words: list[str]) -> None:
    """Parts of snake-case and camel-case names count; longer words that contain one do not."""
    banned = banned_words()
    assert len(banned) > len(("somebody", "whoever", "nobody"))
    found = findings("docs/x.md", text, banned)
    assert [each.split(": ", 1)[1].partition(" -> ")[0] for each in found] == words
