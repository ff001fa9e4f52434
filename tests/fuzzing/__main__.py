"""`python -m tests.fuzzing --minutes N`: feed everything that reads foreign bytes with bad ones.

A case is drawn from seed, target and number: `--seed S --target T --case N` repeats it.
"""

import argparse
import sys
import time
from collections import Counter

from tests.fuzzing.cases import check, data_of
from tests.fuzzing.targets import targets

SHARE_SECONDS = 0.5
"""For each target in turn."""


def main() -> None:
    """Run until the time is over; exit with 1 where a case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--target", choices=sorted(targets()))
    parser.add_argument("--case", type=int)
    arguments = parser.parse_args()
    chosen = [targets()[arguments.target]] if arguments.target else list(targets().values())
    if arguments.case is not None:
        data = data_of(arguments.seed, chosen[0], arguments.case)
        sys.stdout.buffer.write(data + b"\n")
        sys.exit(str(found) if (found := check(chosen[0], data)) else 0)
    until, numbers, failed = time.monotonic() + arguments.minutes * 60, Counter[str](), 0
    known: set[tuple[str, str]] = set()
    while time.monotonic() < until:
        for target in chosen:
            share = time.monotonic() + SHARE_SECONDS
            while time.monotonic() < share:
                numbers[target.name] += 1
                number = numbers[target.name]
                finding = check(target, data_of(arguments.seed, target, number))
                failed += finding is not None
                if finding is not None and (target.name, finding.kind) not in known:
                    known.add((target.name, finding.kind))
                    command = f"--seed {arguments.seed} --target {target.name} --case {number}"
                    print(f"{target.name} {command}: {finding}", flush=True)  # noqa: T201
    print(f"{failed} of {numbers.total()} cases failed: {dict(numbers)}")  # noqa: T201
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
