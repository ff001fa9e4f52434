"""Finds how busy the GPUs of a pool are, from the newest samples of its nodes."""

from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Final

import msgspec

from schemas import subjects
from schemas.messages import LimitedDecoder
from schemas.topology import TELEMETRY
from schemas.value_limits import Int
from services.bus.port import Bus

STALE_SECONDS: Final = 120.0
"""A node of which nothing newer is known does not count."""
HISTORY_MAX: Final = 60


class _Gpu(msgspec.Struct, frozen=True, gc=False):
    utilization_percent: Int | None = None


class _Sample(msgspec.Struct, frozen=True, gc=False):
    gpus: tuple[_Gpu, ...] = ()


_sample: Final = LimitedDecoder(_Sample)


class PoolUtilization:
    """One pool's newest samples, and its averages so far."""

    def __init__(self, bus: Bus, pool: str) -> None:
        self._bus = bus
        self._subject = subjects.telemetry_of(pool)
        self._latest: dict[str, tuple[float, float]] = {}
        """Node -> when, in epoch seconds, and how busy."""
        self._history: deque[tuple[float, int]] = deque(maxlen=HISTORY_MAX)

    async def follow(self) -> None:
        """Take every sample, for ever."""
        following = self._bus.follow(TELEMETRY.name, [self._subject], "last_per_subject")
        assert isinstance(following, AsyncGenerator)
        async with aclosing(following):
            async for stored in following:
                parsed = subjects.parse_node(stored.subject)
                try:
                    sample = _sample.decode(stored.data)
                except msgspec.DecodeError:
                    continue  # the health-monitor counts what cannot be read
                if parsed is not None and (busy := mean(_busy(sample))) is not None:
                    self._latest[parsed.node] = (stored.time.timestamp(), busy)

    def now(self, nodes: Iterable[str], at: float) -> float | None:
        """The average over nodes that are heard of; None: of none."""
        wanted = set(nodes)
        self._latest = {name: each for name, each in self._latest.items() if name in wanted}
        return mean(self._heard(self._latest, at))

    def least_busy(self, nodes: Iterable[str], at: float) -> float | None:
        """Return how busy the least busy of these nodes is; None: of none of them is heard."""
        return min(self._heard(nodes, at), default=None)

    def count(self, nodes: Iterable[str], at: float, most: float) -> int:
        """Return how many of these nodes are heard of and no busier than `most`."""
        return sum(busy <= most for busy in self._heard(nodes, at))

    def _heard(self, nodes: Iterable[str], at: float) -> list[float]:
        """Return how busy those of these nodes are of which something is heard."""
        found = [self._latest[each] for each in nodes if each in self._latest]
        return [busy for when, busy in found if at - when < STALE_SECONDS]

    def noted(self, used: float | None, ready: int) -> tuple[tuple[float, int], ...]:
        """Note an average and the nodes it is of, and return those so far."""
        if used is not None:
            self._history.append((used, ready))
        return tuple(self._history)


def _busy(sample: _Sample) -> list[float]:
    return [float(g.utilization_percent) for g in sample.gpus if g.utilization_percent is not None]


def mean(values: Iterable[float]) -> float | None:
    """Return the average; None of nothing."""
    found = list(values)
    return sum(found) / len(found) if found else None
