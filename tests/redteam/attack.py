"""The form of a row of the attack table, whose rows are in `attacks.py` and `later_attacks.py`."""

from typing import NamedTuple


class Attack(NamedTuple):
    """One attack, and `file::test` of each test that tries it."""

    number: int
    what: str
    tests: tuple[str, ...]


def tests_of(module: str, *tests: str) -> tuple[str, ...]:
    """Name tests of one module below `tests`."""
    return tuple(f"tests/{module}.py::{each}" for each in tests)
