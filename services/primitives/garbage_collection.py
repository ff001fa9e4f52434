"""Sets how often Python looks for garbage in reference cycles."""

import gc
from typing import Final

OBJECTS_BETWEEN: Final = 100_000
"""New objects between two looks. At Python's 700 a pool-manager that launches 10,000 nodes spends
15 % of its time on them, up to 0.3 s at once, as each goes through what it holds of every node."""


def collect_rarely() -> None:
    """Look for garbage in this process seldom; what no cycle holds is freed at once as before."""
    gc.set_threshold(OBJECTS_BETWEEN)
