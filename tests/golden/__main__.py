"""`python -m tests.golden`: write the golden messages that are missing, and what pages show.

It writes docs/events.md, and the tables of docs/metrics.md and docs/troubleshooting.md.

A golden is written once and then kept: a release wrote it, and every later release must read it.
`--again NAME` overwrites one with an example, which is right only before its type was released.
`python -m tests.golden.capture` takes all goldens from runs.
"""

import argparse
import sys

from tests.golden import refusals_table
from tests.golden.catalogue import HAND_MADE, everything, read_sources, write_sources
from tests.golden.document import DOCUMENT, document
from tests.golden.examples import example
from tests.golden.metrics_table import PAGE, page


def main() -> None:
    """Write the missing goldens and the document."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--again", action="append", default=[], metavar="NAME")
    parser.add_argument("--all-again", action="store_true", help="before the first release only")
    arguments = parser.parse_args()
    goldens, sources = everything(), read_sources()
    known = {each.name for each in goldens}
    if unknown := set(arguments.again) - known:
        sys.exit(f"no such type: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    for golden in goldens:
        again = arguments.all_again or golden.name in arguments.again
        if again or not golden.path.exists():
            golden.path.parent.mkdir(exist_ok=True)
            golden.path.write_bytes(example(golden.kind))
            sources[golden.name] = HAND_MADE
            sys.stdout.write(f"wrote {golden.path}\n")
    write_sources({golden.name: sources[golden.name] for golden in goldens})
    DOCUMENT.write_text(document(), encoding="utf-8")
    sys.stdout.write(f"wrote {DOCUMENT}\n")
    PAGE.write_text(page(PAGE.read_text("utf-8")), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
    refusals_table.PAGE.write_text(
        refusals_table.page(refusals_table.PAGE.read_text("utf-8")), encoding="utf-8"
    )
    sys.stdout.write(f"wrote {refusals_table.PAGE}\n")


if __name__ == "__main__":
    main()
