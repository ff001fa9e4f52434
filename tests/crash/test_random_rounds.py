"""A few rounds of `make crash` end with a last line and an exit code that agree."""

import asyncio
import random
import re
import sys
from pathlib import Path

import pytest

from tests.crash.campaign import STRIKES_MAX, Tally, draw
from tests.crash.consistency import Difference
from tests.crash.fleet_actions import REPLACE, moments
from tests.crash.rig import SERVICES

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 5
LAST_LINE = re.compile(
    rf"rounds={ROUNDS} replaced={ROUNDS} lost=0 doubled=0 leaked=0 resume_s_max=\d+\.\d\d"
)


@pytest.mark.slow
async def test_campaign_prints_its_counts() -> None:
    """Random strikes lead to as many replacements as faults, and to nothing else."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.crash", str(ROUNDS), "1", "--pause", "2"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
    )
    said, _ = await process.communicate()
    text = said.decode()
    assert process.returncode == 0, text
    assert LAST_LINE.fullmatch(text.splitlines()[-1]), text


def test_seed_repeats_its_strikes() -> None:
    """A campaign can be repeated."""
    targets, aims = [*SERVICES, "nats-server/1"], moments(REPLACE, "terminate_first")
    drawn = [draw(random.Random(7), targets, aims, 0.5) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert 1 <= len(drawn[0]) <= STRIKES_MAX


@pytest.mark.parametrize(
    ("tally", "status"),
    [
        (Tally(rounds=3, replaced=3, resume_seconds_max=2.9), 0),
        (Tally(rounds=3, replaced=2), 1),
        (Tally(rounds=3, replaced=3, resume_seconds_max=3.1), 1),
        (Tally(rounds=3, replaced=3, found=[Difference("leaked", "an instance")]), 1),
        (Tally(rounds=3, replaced=3, problems=["ended with 1"]), 1),
        (Tally(), 1),
    ],
    ids=["well", "lost one", "late", "leaked", "a bad end", "nothing done"],
)
def test_exit_code_reports_the_result(tally: Tally, status: int) -> None:
    """0 only if every fault led to one replacement, in time, without a difference."""
    assert tally.status() == status
