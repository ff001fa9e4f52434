"""Prints the part of a lock with hashes that an installation needs, from pip's report of it.

    pip install --dry-run --ignore-installed --report chosen.json ".[services]"
    python3 locked_part.py requirements-lock.txt chosen.json > locked.txt
    pip install --require-hashes --no-deps -r locked.txt

The lock has the packages of all extras. A chosen package that it lacks, or has in another version,
ends the program with its name.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

ENTRY: Final = re.compile(r"(?m)^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)(?:.*\\\n(?:    .*\n?)+)")
OWN: Final = "navarch"


def name_of(text: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", text).lower()


def locked_part(lock: str, report: dict[str, Any]) -> str:
    """Return the entries of a lock for the packages of pip's report. Pure."""
    entries = {name_of(each[1]): (each[2], each[0]) for each in ENTRY.finditer(lock)}
    found = []
    for item in report["install"]:
        name, version = name_of(item["metadata"]["name"]), item["metadata"]["version"]
        if name == OWN:
            continue
        if name not in entries or entries[name][0] != version:
            raise SystemExit(f"the lock lacks {name} {version}: run make lock")
        found.append(entries[name][1].rstrip("\n"))
    return "\n".join(found) + "\n"


if __name__ == "__main__":
    lock, report = map(Path, sys.argv[1:3])
    sys.stdout.write(locked_part(lock.read_text("utf-8"), json.loads(report.read_bytes())))
