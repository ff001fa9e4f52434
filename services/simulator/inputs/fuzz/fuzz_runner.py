"""Many seeds, one line at the end; a violation is printed with what it takes to replay it."""

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from services.runtime.logs import silenced
from services.simulator.inputs.fuzz.fuzz_campaign import Campaign, draw, keep
from services.simulator.inputs.fuzz.fuzz_simulation import SeedResult, simulate
from services.simulator.inputs.violation_shrinker import shrink

SHRINK_RUNS_MAX: Final = 60
MINUTES: Final = 3.0
"""Of faults, in each seed, where nothing else is asked for."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzOptions:
    """What to run."""

    seeds: Sequence[str]
    minutes: float = MINUTES
    only: tuple[int, ...] | None = None
    """Numbers of the steps to keep; None: all."""
    jobs: int = 1
    commit: str = ""
    verbose: bool = False


@dataclass(slots=True)
class Tally:
    """What the seeds came to."""

    seeds: int = 0
    violations: int = 0
    seconds: float = 0.0
    """Virtual."""
    wall_seconds: float = 0.0

    def line(self) -> str:
        """The last line."""
        return (
            f"seeds={self.seeds} violations={self.violations} "
            f"simulated_hours={self.seconds / 3600:.1f} wall_s={self.wall_seconds:.1f}"
        )


def campaign_of(seed: str, minutes: float, only: tuple[int, ...] | None) -> Campaign:
    """The campaign of a seed, or the part of it that is asked for."""
    campaign = draw(seed, minutes)
    return campaign if only is None else keep(campaign, only)


def one(seed: str, minutes: float, only: tuple[int, ...] | None = None) -> SeedResult:
    """Simulate one seed, without the services' own words."""
    with silenced():
        return simulate(seed, campaign_of(seed, minutes, only))


def fuzz(order: FuzzOptions, say: Say) -> Tally:
    """Simulate every seed and say what was found; the tally's violations are what matters."""
    tally = Tally()
    began = time.monotonic()
    for outcome in _outcomes(order):
        tally.seeds += 1
        tally.seconds += outcome.seconds
        if order.verbose or len(order.seeds) == 1:
            say(
                f"seed={outcome.seed} history={outcome.digest} events={outcome.events} "
                f"machines={outcome.made} restarts={outcome.restarts} "
                f"simulated_s={outcome.seconds:.0f}"
            )
        if outcome.violation:
            tally.violations += 1
            for line in violation_lines(order, outcome):
                say(line)
    tally.wall_seconds = time.monotonic() - began
    return tally


def _outcomes(order: FuzzOptions) -> Iterator[SeedResult]:
    jobs = min(order.jobs, len(order.seeds))
    if jobs <= 1:
        try:
            for seed in order.seeds:
                yield _apart(seed, order.minutes, order.only)
        finally:
            gc.unfreeze()
        return
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        count = len(order.seeds)
        yield from pool.map(
            _apart, order.seeds, [order.minutes] * count, [order.only] * count, chunksize=4
        )


def _apart(seed: str, minutes: float, only: tuple[int, ...] | None) -> SeedResult:
    """Simulate one seed; what is there before it is kept out of its collections of garbage."""
    gc.collect()
    gc.freeze()
    return one(seed, minutes, only)


def violation_lines(order: FuzzOptions, outcome: SeedResult) -> Iterator[str]:
    """The violation, the fewest steps that lead to it, and how to replay them."""
    campaign = campaign_of(outcome.seed, order.minutes, order.only)

    def violating(fewer: tuple[int, ...]) -> SeedResult | None:
        found = one(outcome.seed, order.minutes, fewer)
        return found if found.violation else None

    numbered = order.only if order.only is not None else range(1, len(campaign.steps) + 1)
    kept, found = shrink(tuple(numbered), violating, SHRINK_RUNS_MAX)
    smallest = found or outcome
    numbers = ",".join(map(str, kept))
    yield ""
    yield f"VIOLATION seed={outcome.seed} commit={order.commit or 'unknown'}"
    yield f"  {smallest.violation}"
    yield f"fleet: {campaign.shape}"
    yield f"{len(kept)} of the seed's steps are enough:"
    whole = draw(outcome.seed, order.minutes)
    yield from (f"  {number}: {whole.steps[number - 1]}" for number in kept)
    yield "history, as far as it is about this:"
    yield from (f"  {line}" for line in smallest.tail)
    yield f"replay: navarch simulator fuzz --seed {outcome.seed} --minutes {order.minutes:g}"
    yield f"        and add --only {numbers or 0} for the steps above alone"


def jobs_of_this_machine() -> int:
    """As many as there are processors to run on."""
    return len(os.sched_getaffinity(0))
