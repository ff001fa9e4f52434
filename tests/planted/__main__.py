"""Draws mutants of the services by a seed, and counts the seeds of campaigns until each is found.

python -m tests.planted --draw 7 --mutants 10 --seeds 200 --first 900000
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from services.simulator.inputs.fuzz.fuzz_runner import MINUTES, simulate_seed
from tests.planted.mutations import Mutant, mutants
from tests.simulator.planted_bugs import BUGS

ROOT: Final = Path(__file__).resolve().parents[2]
MUTATED: Final = (
    *("services/bus/leases.py", "services/bus/record_bucket.py", "services/bus/bucket_mirror.py"),
    *("services/runtime/consumer_loop.py", "services/runtime/event_publisher.py", "services/saga"),
    *("services/pool_manager", "services/health_monitor", "services/provisioner"),
    "services/notifier",
)
REACHED_BY: Final = 8
"""Seeds that show which lines campaigns reach."""
SECONDS_MAX: Final = 1_200
"""For the seeds of one mutant; one that does not end is found."""


def reached_lines(seeds: range) -> dict[str, set[int]]:
    """The lines of the mutated modules that these seeds run."""
    found: dict[str, set[int]] = defaultdict(set)
    files = {str(ROOT / path): path for path in module_paths()}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        path = files.get(frame.f_code.co_filename)
        if path is None:
            return None
        if event == "line":
            found[path].add(frame.f_lineno)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
    try:
        for seed in seeds:
            simulate_seed(str(seed), MINUTES)
    finally:
        sys.settrace(None)
    return found


def module_paths() -> list[str]:
    """The modules of which mutants are drawn."""
    found: list[Path] = []
    for each in MUTATED:
        path = ROOT / each
        found += [path] if path.suffix else sorted(path.rglob("*.py"))
    return [str(path.relative_to(ROOT)) for path in found]


def drawn(seed: str, count: int) -> list[Mutant]:
    """Draw so many mutants, each at another place."""
    reached = reached_lines(range(REACHED_BY))
    every = [
        mutant
        for path, lines in sorted(reached.items())
        for mutant in mutants(path, (ROOT / path).read_text(encoding="utf-8"), lines)
    ]
    write(f"{len(every)} places in {len(reached)} modules")
    return random.Random(seed).sample(every, k=count)


def look_for(mutant: Mutant, first: int, seeds: int) -> str:
    """Run the seeds on a copy of the tree with a mutant; return what found it, or nothing."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        for each in ("schemas", "agent", "config", "tests"):
            (copy / each).symlink_to(ROOT / each)
        shutil.copytree(ROOT / "services", copy / "services")
        (copy / mutant.path).write_text(mutant.text, encoding="utf-8")
        command = [sys.executable, "-m", "tests.planted", "--run"]
        command += ["--first", str(first), "--seeds", str(seeds)]
        environment = {**os.environ, "PYTHONPATH": place, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            run = subprocess.run(
                command,
                cwd=place,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no end within {SECONDS_MAX} s"
    return run.stdout.strip() if run.returncode == 0 else run.stderr.strip().splitlines()[-1]


def is_found(mutant: Mutant, first: int, seeds: int) -> str:
    """Return what a mutant violates that the services as they are do not; empty: nothing."""
    last = first + seeds
    while first < last:
        found = look_for(mutant, first, last - first)
        number = re.match(r"at seed (\d+): ", found)
        if number is None:
            return found
        seed = first + int(number[1]) - 1
        if not simulate_seed(str(seed), MINUTES).violation:
            return f"{seed}: {found.partition(': ')[2]}"
        write(f"seed {seed} is violated without a mutant, too")
        first = seed + 1
    return ""


def run_with(bug: str, first: int, seeds: int) -> str:
    """The first violation with one of the bugs that were thought of by people."""
    with pytest.MonkeyPatch.context() as patch:
        BUGS[bug](patch)
        return run_seeds(first, seeds)


def run_seeds(first: int, seeds: int) -> str:
    """The first violation of these seeds; empty: none is violated."""
    for number, seed in enumerate(range(first, first + seeds), 1):
        outcome = simulate_seed(str(seed), MINUTES)
        if outcome.violation:
            return f"at seed {number}: {outcome.violation.splitlines()[0][:160]}"
    return ""


def write(line: str) -> None:
    """Print a line at once: what is looked for takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Draw and look, or run the seeds of one mutant."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("--draw", default="1", help="seed of the drawing")
    parser.add_argument("--mutants", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed of the campaigns")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--run", action="store_true", help="only run the seeds, on this tree")
    parser.add_argument("--bug", choices=BUGS, action="append", default=[], help="plant this one")
    parser.add_argument("--list", action="store_true", help="only print what is drawn")
    given = parser.parse_args()
    if given.run:
        write(run_seeds(given.first, given.seeds))
        return 0
    missed = 0
    for bug in given.bug:
        found = run_with(bug, given.first, given.seeds)
        missed += not found
        write(json.dumps({"bug": bug, "found": found}))
    for mutant in drawn(given.draw, given.mutants) if given.mutants else ():
        if given.list:
            write(str(mutant))
            continue
        found = is_found(mutant, given.first, given.seeds)
        missed += not found
        write(json.dumps({"mutant": str(mutant), "found": found}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
