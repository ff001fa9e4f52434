"""Finds a small set of faults that still violates an invariant. Pure but for the runs."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Run = TypeVar("Run")


def shrink(
    numbers: Sequence[int], find_violation: Callable[[tuple[int, ...]], Run | None], runs_max: int
) -> tuple[tuple[int, ...], Run | None]:
    """Leave out faults as long as a run with the rest violates an invariant.

    `find_violation` runs with only these faults; it returns the run, or None without a violation.
    Returns the numbers that are left, and the last run that violated; None: no fault can go.
    """
    kept, smallest, runs, size = list(numbers), None, 0, max(len(numbers) // 2, 1)
    while kept and runs < runs_max:
        for start in range(0, len(kept), size):
            fewer = tuple(kept[:start] + kept[start + size :])
            found = find_violation(fewer)
            runs += 1
            if found is not None:
                kept, smallest = list(fewer), found
                break
            if runs >= runs_max:
                break
        else:
            if size == 1:
                break
            size = max(size // 2, 1)
    return tuple(kept), smallest
