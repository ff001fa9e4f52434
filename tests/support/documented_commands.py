"""Finds the commands of `navarch` and `navarch-agent` in code blocks of README.md and docs."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = frozenset({"navarch", "navarch-agent"})
SHELLS = frozenset({"bash", "sh", "console"})
BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class Documented(NamedTuple):
    """Describes one command of a page."""

    page: str
    words: tuple[str, ...]
    """The program's name first, without its folder."""

    @property
    def line(self) -> str:
        """Return the command as it may be typed."""
        return shlex.join(self.words)


def commands_of(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the commands of a shell line: of each part between operators, and of `sh -c`."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    part: list[str] = []
    for word in [*lexer, ";"]:
        if word.strip("();<>|&"):
            part.append(word)
            continue
        while part and (ASSIGNMENT.match(part[0]) or part[0] == "sudo"):
            part.pop(0)
        if part[:1] == ["sh"] and "-c" in part:
            yield from commands_of(part[-1])
        elif len(part) > 1 and part[0].rpartition("/")[2] in PROGRAMS:
            yield (part[0].rpartition("/")[2], *part[1:])
        part = []


def documented() -> Iterator[Documented]:
    """Yield every command, in the order of pages and lines."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for shell, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if shell not in SHELLS:
                continue
            for line in block.replace("\\\n", " ").splitlines():
                if any(each in line for each in PROGRAMS):
                    for words in commands_of(line):
                        yield Documented(page.name, words)
