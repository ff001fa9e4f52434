"""How much a pool's GPUs were used in the last minutes, from the stored samples. Pure."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from services.bus.port import Stored
from services.fleet_client.fleet_use import readings_decoder

SPAN: Final = timedelta(minutes=15)
"""So long samples are kept."""
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


def utilization_points(samples: Iterable[Stored]) -> tuple[UtilizationPoint, ...]:
    """The mean of all readings of each step; a sample that cannot be read is left out."""
    steps: dict[int, list[int]] = {}
    for stored in samples:
        try:
            readings = readings_decoder.decode(stored.data)
        except msgspec.DecodeError:
            continue
        at = int(stored.time.timestamp()) // STEP_SECONDS
        known = (each.utilization_percent for each in readings.gpus)
        steps.setdefault(at, []).extend(each for each in known if each is not None)
    return tuple(
        UtilizationPoint(
            time=datetime.fromtimestamp(at * STEP_SECONDS, UTC), percent=_mean(steps[at])
        )
        for at in sorted(steps)
        if steps[at]
    )


def _mean(values: Sequence[int]) -> float:
    return round(sum(values) / len(values), 1)
