"""Reduces what a command prints to its shape: the headings of its tables, and how it begins.

What differs from run to run is in no shape: times, names with numbers, and which columns a terminal
has room for.
"""

import re
from collections.abc import Sequence
from typing import Final

WORDS: Final = 6
"""Words of the first line."""
COLUMNS_MIN: Final = 2
_GAP: Final = re.compile(r" {2,}")
_NAME: Final = re.compile(r".*[\d/…].*")
JSON: Final = "(JSON)"
NOTHING: Final = "(nothing)"

Shape = tuple[str, ...]


def heading(line: str) -> list[str]:
    """Return the columns of a table's heading; none: the line is another one."""
    cells = _GAP.split(line.strip())
    capitals = all(each.isupper() or each in ("$/H", "°C") for each in cells)
    return cells if capitals and len(cells) >= COLUMNS_MIN else []


def shape(text: str) -> Shape:
    """Return how the output begins, then the heading of each table."""
    lines = [each for each in text.splitlines() if each.strip()]
    if not lines:
        return (NOTHING,)
    if lines[0].strip()[:1] in ("{", "["):
        return (JSON,)
    found = [] if heading(lines[0]) else [_beginning(lines)]
    found += [" | ".join(cells) for each in lines if (cells := heading(each))]
    return tuple(dict.fromkeys(found))


def differences(found: Shape, known: Shape) -> list[str]:
    """Return what of a shape is not as it is known; a heading may lack columns but the first."""
    return [
        each
        for each in found
        if each not in known and not any(_lacks_columns(each, one) for one in known)
    ]


def overlong(text: str, columns: int) -> list[str]:
    """Return the lines that are wider than the terminal and could have been broken."""
    return [
        each
        for each in text.splitlines()
        if len(each) > columns and " " in each.strip()[: columns - 1]
    ]


def _beginning(lines: Sequence[str]) -> str:
    words = " ".join(each.strip() for each in lines[:3]).split()[:WORDS]
    return " ".join("#" if _NAME.match(each) else each for each in words)


def _lacks_columns(narrow: str, wide: str) -> bool:
    kept, every = narrow.split(" | "), wide.split(" | ")
    left = iter(every)
    return kept[0] == every[0] and all(each in left for each in kept)
