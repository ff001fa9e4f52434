"""Many seeds, one line at the end; a violation is printed with its shortest replay."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from services.runtime.logs import silenced
from services.simulator.inputs.fuzz.fuzz_campaign import draw, keep
from services.simulator.inputs.fuzz.fuzz_simulation import SeedResult, simulate
from services.simulator.inputs.violation_shrinker import shrink

SHRINK_RUNS_MAX: Final = 60
MINUTES: Final = 3.0
"""Of faults in each seed, unless the command says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzOptions:
    """Says which seeds to run, and how."""

    seeds: Sequence[str]
    minutes: float = MINUTES
    only: tuple[int, ...] | None = None
    """Numbers of the steps to keep; None: all."""
    jobs: int = 1
    commit: str = ""
    verbose: bool = False


@dataclass(slots=True)
class Tally:
    """Totals over the seeds."""

    seeds: int = 0
    violations: int = 0
    seconds: float = 0.0
    """Virtual."""
    wall_seconds: float = 0.0

    def line(self) -> str:
        """Return the last line of the output."""
        return (
            f"seeds={self.seeds} violations={self.violations} "
            f"simulated_hours={self.seconds / 3600:.1f} wall_s={self.wall_seconds:.1f}"
        )


def simulate_seed(seed: str, minutes: float, only: tuple[int, ...] | None = None) -> SeedResult:
    """Simulate one seed, or only these of its steps, without the services' logs."""
    campaign = draw(seed, minutes)
    with silenced():
        return simulate(seed, campaign if only is None else keep(campaign, only))


def fuzz(options: FuzzOptions, write: Callable[[str], None]) -> Tally:
    """Simulate every seed, and write the violations."""
    tally = Tally()
    began = time.monotonic()
    for outcome in _outcomes(options):
        tally.seeds += 1
        tally.seconds += outcome.seconds
        if options.verbose or len(options.seeds) == 1:
            write(
                f"seed={outcome.seed} history={outcome.digest} events={outcome.events} "
                f"machines={outcome.made} restarts={outcome.restarts} "
                f"simulated_s={outcome.seconds:.0f}"
            )
        if outcome.violation:
            tally.violations += 1
            for line in _violation_lines(options, outcome):
                write(line)
    tally.wall_seconds = time.monotonic() - began
    return tally


def _outcomes(options: FuzzOptions) -> Iterator[SeedResult]:
    runs = (options.seeds, repeat(options.minutes), repeat(options.only))
    jobs = min(options.jobs, len(options.seeds))
    if jobs > 1:
        with ProcessPoolExecutor(max_workers=jobs) as pool:
            yield from pool.map(simulate_seed, *runs, chunksize=4)
        return
    yield from map(simulate_seed, *runs)


def _violation_lines(options: FuzzOptions, outcome: SeedResult) -> Iterator[str]:
    """The violation, the fewest steps that lead to it, and how to replay them."""
    campaign = draw(outcome.seed, options.minutes)

    def find_violation(fewer: tuple[int, ...]) -> SeedResult | None:
        found = simulate_seed(outcome.seed, options.minutes, fewer)
        return found if found.violation else None

    numbers = options.only or range(1, len(campaign.steps) + 1)
    kept, found = shrink(numbers, find_violation, SHRINK_RUNS_MAX)
    smallest = found or outcome
    yield ""
    yield f"VIOLATION seed={outcome.seed} commit={options.commit or 'unknown'}"
    yield f"  {smallest.violation}"
    yield f"fleet: {campaign.shape}"
    yield f"{len(kept)} of the seed's steps are enough:"
    yield from (f"  {number}: {campaign.steps[number - 1]}" for number in kept)
    yield "history, as far as it is about this:"
    yield from (f"  {line}" for line in smallest.tail)
    yield f"replay: navarch simulator fuzz --seed {outcome.seed} --minutes {options.minutes:g}"
    yield f"        and add --only {','.join(map(str, kept)) or 0} for the steps above alone"
