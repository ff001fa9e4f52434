"""Collects every name that a docstring may cite: of code, keys, settings, commands, documentation.

Docstrings, comments and messages do not count, so that no prose makes what it cites exist. The
texts are scanned, not parsed: the names of 130,000 lines are found in a second.
"""

import builtins
import functools
import re
import sys
from typing import Final

from tests.house.modules import ROOT, modules
from tests.house.test_dead_declarations import GENERATED

CODE: Final = (
    "agent",
    "benchmarks",
    "deploy",
    "docs",
    "examples",
    "navarch",
    "schemas",
    "services",
    "tests",
)
DATA: Final = (
    *("pyproject.toml", "Makefile", "constraints.txt", ".ci/run", "config/**/*.yaml"),
    *("compose/**/*.y*ml", "deploy/**/*.*", "services/gateway/dashboard/*.js"),
    "services/**/*.c",
)
"""Files that are not Python: all of their words count, since few of them are prose."""
PAGES: Final = ("README.md", "CONTRIBUTING.md", "docs/*.md")
"""Documentation: what it marks as code counts."""
OUTDATED: Final = GENERATED | {"docs/decisions.md"}
"""Pages that are made of docstrings, and the one that describes what was there before."""

_WORD: Final = re.compile(r"\w+")
_PROSE: Final = re.compile(r'^ *r?"""[\s\S]*?"""|"(?:[^"\\\n]|\\.)*"|#[^\n]*', re.MULTILINE)
_MARKED: Final = re.compile(r"```[\s\S]*?```|`[^`\n]+`")
_IMPORTED: Final = re.compile(r"^ *(?:import|from) (\w+)", re.MULTILINE)


def _key_or_nothing(found: re.Match[str]) -> str:
    text = found[0]
    return text if text[0] == '"' and " " not in text else " "


@functools.cache
def known_names() -> frozenset[str]:
    """Return every word that names something in the repository, or in Python itself."""
    found = {*dir(builtins), *sys.stdlib_module_names}
    for path, _, text in modules(*CODE):
        found.update(_WORD.findall(path))
        found.update(_WORD.findall(_PROSE.sub(_key_or_nothing, text)))
    for pattern in DATA:
        for file in ROOT.glob(pattern):
            if file.is_file():
                found.update(_WORD.findall(file.read_text(encoding="utf-8", errors="replace")))
    for pattern in PAGES:
        for page in ROOT.glob(pattern):
            if page.relative_to(ROOT).as_posix() not in OUTDATED:
                for marked in _MARKED.findall(page.read_text(encoding="utf-8")):
                    found.update(_WORD.findall(marked))
    return frozenset(found)


@functools.cache
def foreign_packages() -> frozenset[str]:
    """Return the packages of others that the code imports: their members are not looked up."""
    imported = {each for *_, text in modules(*CODE) for each in _IMPORTED.findall(text)}
    return (imported | sys.stdlib_module_names) - set(CODE)
