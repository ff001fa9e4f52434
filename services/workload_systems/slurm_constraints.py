"""Decides whether a node with certain features may serve a job of a certain constraint. Pure.

The form is that of sbatch's `--constraint`: `&` and `|`, parentheses, one pair of brackets, within
which counts name different nodes (`[rack1*2&rack2*4]`).
"""

import re
from collections.abc import Collection
from typing import Final

_TOKEN: Final = re.compile(r"\*[0-9]+|[&|()\[\]]|[^&|()\[\]*\s]+")
CHARS_MAX: Final = 1000
"""A longer constraint is not read."""


def may_serve(features: Collection[str], constraint: str) -> bool:
    """Return whether some node of a job may have these features; also where it cannot be read."""
    tokens = _TOKEN.findall(constraint)
    if not tokens or len(constraint) > CHARS_MAX:
        return True
    tokens.reverse()
    try:
        found = _either(tokens, features, bracketed=False)
    except (IndexError, ValueError, RecursionError):
        return True
    return found or bool(tokens)


def _either(tokens: list[str], features: Collection[str], *, bracketed: bool) -> bool:
    found = [_every(tokens, features, bracketed=bracketed)]
    while _next_is(tokens, "|"):
        found.append(_every(tokens, features, bracketed=bracketed))
    return any(found)


def _every(tokens: list[str], features: Collection[str], *, bracketed: bool) -> bool:
    found = [_one(tokens, features, bracketed=bracketed)]
    while _next_is(tokens, "&"):
        found.append(_one(tokens, features, bracketed=bracketed))
    return any(found) if bracketed else all(found)


def _one(tokens: list[str], features: Collection[str], *, bracketed: bool) -> bool:
    part = tokens.pop()
    if part[0] in "&|)]*":
        raise ValueError(part)
    found = part in features
    if part in "([":
        found = _either(tokens, features, bracketed=part == "[")
        tokens.pop()
    if tokens and tokens[-1].startswith("*"):
        tokens.pop()
        found = found or not bracketed  # the job's other nodes need not have it
    return found


def _next_is(tokens: list[str], wanted: str) -> bool:
    if not tokens or tokens[-1] != wanted:
        return False
    tokens.pop()
    return True
