"""Holds back what a storm repeats: the first of each kind passes, then a few, then a count.

A GPU that dies may write a thousand equal lines a second. Each kind of fault (kind, code, device,
subcode) may pass `PASSES_MAX` times a window; of the rest the last one is told when the window
ends, with `repeats` among its metrics. Pure but for that memory; time is an argument.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from schemas.node_events import Fault

WINDOW_SECONDS: Final = 60.0
PASSES_MAX: Final = 10
KINDS_MAX: Final = 1024
"""Kinds remembered at once; beyond it everything passes."""

Key = tuple[str, int, str, str]


@dataclass(slots=True)
class _Window:
    ends: float
    passed: int = 0
    held: int = 0
    last: Callable[[], Fault] | None = None


class Storm:
    """A filter for faults."""

    def __init__(self) -> None:
        """Begin in calm."""
        self._windows: dict[Key, _Window] = {}

    def passes(self, key: Key, now: float, fault: Callable[[], Fault]) -> bool:
        """Whether to send a fault now; a False is remembered and told later by `due`.

        Only the last of those held back is ever made: a storm must cost little.
        """
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= KINDS_MAX:
                return True
            window = self._windows[key] = _Window(now + WINDOW_SECONDS)
        if window.passed < PASSES_MAX:
            window.passed += 1
            return True
        window.held += 1
        window.last = fault
        return False

    def due(self, now: float) -> list[Fault]:
        """The last fault of each kind that was held back in a window that has ended."""
        ended = [key for key, window in self._windows.items() if window.ends <= now]
        found: list[Fault] = []
        for key in ended:
            window = self._windows.pop(key)
            if window.last is not None:
                last = window.last()
                metrics = last.metrics | {"repeats": window.held}
                found.append(msgspec.structs.replace(last, metrics=metrics))
        return found
