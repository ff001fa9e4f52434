"""Fuzz campaigns of thirty seeds in virtual time; `make nightly` runs ten thousand."""

import pytest

from services.simulator.inputs.fuzz.fuzz_runner import MINUTES, FuzzOptions, fuzz

SEEDS = 30
TOGETHER = 5


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS + 1, TOGETHER))
def test_no_invariant_is_violated(first):
    """Every invariant holds, whatever faults and requests the seeds draw."""
    lines: list[str] = []
    order = FuzzOptions(seeds=[str(first + number) for number in range(TOGETHER)])
    tally = fuzz(order, lines.append)
    assert (lines, tally.violations, tally.seeds) == ([], 0, TOGETHER)
    assert tally.seconds > TOGETHER * MINUTES * 60
