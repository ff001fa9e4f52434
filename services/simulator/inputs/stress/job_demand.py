"""The jobs of a stress run, all drawn before it starts. Pure.

They arrive at random, at the rate of the file. Each goes to a pool by the pool's share of the
nodes, and occupies one place of one node.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final

from services.simulator.inputs.stress.stress_format import WorkloadSpec

JOBS_MAX: Final = 200_000
"""Expected in a whole run."""
JOB_SECONDS_MIN: Final = 1.0
SECONDS_PER_MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Describes one job and its demand."""

    number: int
    at: float
    pool: str
    seconds: float
    """How long it runs uninterrupted."""


def draw(
    spec: WorkloadSpec, sizes: Mapping[str, int], seconds: float, seed: str
) -> tuple[Job, ...]:
    """The jobs of a run; the same seed draws the same jobs."""
    chance = Random(f"{seed}/jobs")  # noqa: S311 - repeatable is the point
    pools, weights = list(sizes), list(sizes.values())
    return tuple(
        Job(
            number=number,
            at=at,
            pool=chance.choices(pools, weights)[0],
            seconds=max(chance.gauss(spec.job_mean, spec.job_stddev), JOB_SECONDS_MIN),
        )
        for number, at in enumerate(_moments(spec, seconds, Random(f"{seed}/demand")))  # noqa: S311
    )


def expected_jobs(spec: WorkloadSpec, seconds: float) -> float:
    """Return how many jobs arrive on average."""
    return sum(rate * (until - since) for since, until, rate in _spans(spec, seconds))


def _moments(spec: WorkloadSpec, seconds: float, chance: Random) -> Iterator[float]:
    for since, until, rate in _spans(spec, seconds):
        at = since
        while rate and (at := at + chance.expovariate(rate)) < until:
            yield at


def _spans(spec: WorkloadSpec, seconds: float) -> Iterator[tuple[float, float, float]]:
    """Start, end and jobs per second of each span."""
    steps = [(min(float(each.at), seconds), each.jobs_per_minute) for each in spec.demand]
    for (since, rate), (until, _) in pairwise((*steps, (seconds, 0.0))):
        yield since, until, rate / SECONDS_PER_MINUTE
