"""Limits the rate of equal faults.

A failing GPU may log a thousand equal lines a second. Each fault (kind, code, device, subcode) may
pass `PASSES_MAX` times a window; the last of the others is published when the window ends, with
`repeats` in its metrics. Beyond `KEYS_MAX` different faults, those of one code count as equal, and
beyond twice as many all do. Pure apart from its state; time is an argument.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from schemas.node_events import Fault

WINDOW_SECONDS: Final = 60.0
PASSES_MAX: Final = 10
KEYS_MAX: Final = 256

Key = tuple[str, int, str, str]


@dataclass(slots=True)
class _Window:
    ends: float
    passed: int = 0
    held: int = 0
    last: Callable[[], Fault] | None = None


class FaultRateLimit:
    """Limits how many faults one agent sends."""

    def __init__(self) -> None:
        self._windows: dict[Key, _Window] = {}

    def passes(self, key: Key, now: float, fault: Callable[[], Fault]) -> int:
        """Return which of its kind a fault is that is sent now; 0: `due` returns it later.

        Only the last of the limited faults is built, to save work.
        """
        key = self._key(key)
        window = self._windows.setdefault(key, _Window(now + WINDOW_SECONDS))
        if window.passed < PASSES_MAX:
            window.passed += 1
            return window.passed
        window.held += 1
        window.last = fault
        return 0

    def _key(self, key: Key) -> Key:
        """The key under which a fault is counted: a coarser one where too many are known."""
        kind, code, _, _ = key
        for each, most in ((key, KEYS_MAX), ((kind, code, "", ""), 2 * KEYS_MAX)):
            if each in self._windows or len(self._windows) < most:
                return each
        return "", 0, "", ""

    def due(self, now: float) -> list[Fault]:
        """The last limited fault of each window that has ended."""
        ended = [key for key, window in self._windows.items() if window.ends <= now]
        found: list[Fault] = []
        for key in ended:
            window = self._windows.pop(key)
            if window.last is not None:
                last = window.last()
                metrics = last.metrics | {"repeats": window.held}
                found.append(msgspec.structs.replace(last, metrics=metrics))
        return found
