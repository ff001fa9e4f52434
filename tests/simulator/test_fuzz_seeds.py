"""Three hundred fleets in virtual time; ten thousand come with `make simulate SEEDS=10000`."""

import pytest

from services.simulator.inputs.fuzz.fuzz_runner import MINUTES, FuzzOptions, fuzz

SEEDS = 300
TOGETHER = 20


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS + 1, TOGETHER))
def test_no_invariant_is_violated(first):
    """Crashes, losses, silence, notices, people, providers that lie: whatever the seeds bring."""
    lines: list[str] = []
    order = FuzzOptions(seeds=[str(first + number) for number in range(TOGETHER)])
    tally = fuzz(order, lines.append)
    assert (lines, tally.violations, tally.seeds) == ([], 0, TOGETHER)
    assert tally.seconds > TOGETHER * MINUTES * 60
