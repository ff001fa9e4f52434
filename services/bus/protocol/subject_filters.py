"""Compares subjects with filters, with the wildcards of NATS. Pure."""

import re
from functools import lru_cache
from typing import Final

ANY: Final = "*"
"""Any one token."""
REST: Final = ">"
"""One token or more, to the end."""
PATTERNS_MAX: Final = 4_096


def matches(filter_: str, subject: str) -> bool:
    """Return whether a subject is one of those that a filter names."""
    return pattern((filter_,)).fullmatch(subject) is not None


def overlaps(one: str, other: str) -> bool:
    """Return whether there is a subject that both filters name."""
    left, right = one.split("."), other.split(".")
    for mine, theirs in zip(left, right, strict=False):
        if REST in (mine, theirs):
            return True
        if mine != theirs and ANY not in (mine, theirs):
            return False
    return len(left) == len(right)


@lru_cache(maxsize=PATTERNS_MAX)
def pattern(filters: tuple[str, ...]) -> re.Pattern[str]:
    """Filters as one expression; it is asked of thousands of subjects."""
    parts = {ANY: r"[^.]+", REST: r".+"}
    return re.compile(
        "|".join(
            r"\.".join(parts.get(each, re.escape(each)) for each in filter_.split("."))
            for filter_ in filters
        )
    )
