"""How much a pool's GPUs were used lately, from the samples that are kept. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from services.fleet_client.fleet_use import GpuReadings, mean

STEP_SECONDS: Final = 30
"""Of a point: two samples of each node."""
NODES_MAX: Final = 32
"""Nodes whose samples are read for one answer: 2,000 samples. The mean of 256 GPUs is within a few
percent of that of ten thousand nodes."""


class UtilizationPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of the GPUs from a time on, for thirty seconds."""

    time: datetime
    percent: float


class UtilizationHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The utilization of a pool's GPUs over the last fifteen minutes."""

    pool: str
    nodes: int
    """The pool's nodes in service."""
    sampled: int
    """Nodes whose samples were read."""
    points: tuple[UtilizationPoint, ...] = ()
    """Oldest first, without those at which no sample says it."""


def sampled_nodes(nodes: Iterable[str]) -> list[str]:
    """Every node, or so many that lie evenly in their order."""
    found = sorted(nodes)
    step = max(len(found) / NODES_MAX, 1.0)
    return [found[int(each * step)] for each in range(min(len(found), NODES_MAX))]


def utilization_points(samples: Iterable[GpuReadings]) -> tuple[UtilizationPoint, ...]:
    """The mean of all readings of each step."""
    steps: dict[int, list[int | None]] = {}
    for sample in samples:
        at = int(sample.time.timestamp()) // STEP_SECONDS
        steps.setdefault(at, []).extend(each.utilization_percent for each in sample.gpus)
    means = ((at, mean(steps[at])) for at in sorted(steps))
    return tuple(
        UtilizationPoint(time=datetime.fromtimestamp(at * STEP_SECONDS, UTC), percent=percent)
        for at, percent in means
        if percent is not None
    )
