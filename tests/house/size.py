"""`python -m tests.house.size` prints how large the code is, by package; it fails nothing.

`--since HEAD~1` adds the difference to a commit. A repeated passage is a run of at least
`PASSAGE_LINES` lines that occurs twice; blank lines, comments and imports are not compared.
"""

import argparse
import io
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.house.modules import ROOT

FOLDERS: Final = ("agent", "benchmarks", "examples", "schemas", "services", "tests")
PASSAGE_LINES: Final = 6
GIT_SECONDS: Final = 60
SUM: Final = "all"

_FUNCTION: Final = re.compile(r"^ *(?:async )?def ", re.MULTILINE)
_LEFT_OUT: Final = re.compile(r"#|(?:import|from) ")


class Size(NamedTuple):
    """The size of one package in lines, modules, functions and repeated passages."""

    lines: int = 0
    modules: int = 0
    functions: int = 0
    passages: int = 0
    repeated_lines: int = 0

    def plus(self, other: "Size") -> "Size":
        """Return the sum of both sizes, column by column."""
        return Size(*map(sum, zip(self, other, strict=True)))


def package_of(path: str) -> str:
    """Return the package that a module counts for: its folder, below services/ with the service."""
    first, *rest = path.split("/")
    return f"{first}/{rest[0]}" if first == "services" and len(rest) > 1 else first


def _compared_lines(text: str) -> list[str]:
    stripped = (line.strip() for line in text.splitlines())
    return [line for line in stripped if line and not _LEFT_OUT.match(line)]


def repetitions(files: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield each repeated passage of the files: its file and its number of lines."""
    numbers: dict[str, int] = {}
    windows = {}
    for path, text in files.items():
        lines = [numbers.setdefault(each, len(numbers)) for each in _compared_lines(text)]
        windows[path] = [*zip(*(lines[start:] for start in range(PASSAGE_LINES)), strict=False)]
    times = Counter(window for each in windows.values() for window in each)
    for path, each in windows.items():
        run = 0
        for window in (*each, None):
            if window is not None and times[window] > 1:
                run += 1
            elif run:
                yield path, run + PASSAGE_LINES - 1
                run = 0


def sizes(files: Mapping[str, str]) -> dict[str, Size]:
    """Return the size of every package of the files (path -> text), and of all of them."""
    found: dict[str, Size] = defaultdict(Size)
    for path, text in sorted(files.items()):
        one = Size(len(text.splitlines()), 1, len(_FUNCTION.findall(text)))
        for name in (package_of(path), SUM):
            found[name] = found[name].plus(one)
    for path, lines in repetitions(files):
        for name in (package_of(path), SUM):
            found[name] = found[name].plus(Size(passages=1, repeated_lines=lines))
    return dict(found)


def table(now: Mapping[str, Size], before: Mapping[str, Size] | None) -> str:
    """Format the sizes as a table; `before` adds to each figure by how much it changed."""
    names = sorted({*now, *(before or ())}, key=lambda name: (name == SUM, name))
    rows = [("package", *(each.replace("_", " ") for each in Size._fields))]
    for name in names:
        current = now.get(name, Size())
        earlier = current if before is None else before.get(name, Size())
        pairs = zip(current, earlier, strict=True)
        rows.append((name, *(f"{a:,}" + (f" ({a - b:+,})" if a != b else "") for a, b in pairs)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def files_here() -> dict[str, str]:
    """Return the modules of the work tree: path -> text."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }


def files_of(root: Path, commit: str) -> dict[str, str] | str:
    """Return the modules of a commit (path -> text), or the reason why they cannot be read."""
    command = ["git", "-C", str(root), "archive", "--format=tar", commit]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        return done.stderr.decode(errors="replace").strip()
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        return {
            each.name: stored.read().decode()
            for each in archive
            if each.name.endswith(".py") and each.name.startswith(tuple(f"{f}/" for f in FOLDERS))
            if (stored := archive.extractfile(each)) is not None
        }


def main() -> None:
    """Print the table, and below it why there is no difference where one was requested."""
    parser = argparse.ArgumentParser(description="print the size of the code by package")
    parser.add_argument("--since", metavar="COMMIT", help="also print the difference to a commit")
    since = parser.parse_args().since
    before = files_of(ROOT, since) if since else None
    lines = [table(sizes(files_here()), sizes(before) if isinstance(before, dict) else None)]
    if isinstance(before, dict):
        lines.append(f"In brackets: the difference to {since}.")
    elif before is not None:
        lines.append(f"No difference to {since}: {before}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
