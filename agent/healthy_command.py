"""`navarch-agent healthy`: whether this node is healthy, in milliseconds and without the bus.

For prologs, epilogs and health check programs. It imports the standard library alone, and reads the
file that the agent writes. The fleet's verdict decides; where nothing is known, or what is known is
old, the node counts as healthy, because a monitor that is down must not stop the cluster.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

FILE: Final = "health.json"
STATE_DIR: Final = "/var/lib/navarch-agent"
OLD_SECONDS: Final = 300.0
FILE_BYTES_MAX: Final = 65_536
UNHEALTHY: Final = 1
UNKNOWN: Final = 3
USAGE: Final = """\
usage: navarch-agent healthy [--strict]

Prints `healthy`, or why not. Exit code 0: healthy, or nothing is known; 1: unhealthy; 3, with
--strict alone: nothing is known, or the agent has not heard from the fleet for five minutes.
"""


def run(arguments: list[str]) -> int:
    """Print the node's health; return the exit code."""
    if set(arguments) - {"--strict"}:
        sys.stderr.write(USAGE)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    file = Path(os.environ.get("NAVARCH_STATE_DIR", STATE_DIR)) / FILE
    text, code = judge(_read(file), time.time())
    sys.stdout.write(f"{text}\n")
    return 0 if code == UNKNOWN and "--strict" not in arguments else code


def judge(found: dict[str, Any], now: float) -> tuple[str, int]:
    """Return what to print, and the exit code under --strict."""
    if problem := found.get("problem"):
        return f"unknown: {problem}", UNKNOWN
    health, age = found.get("health"), now - _number(found.get("read_at"))
    if health == "unhealthy":
        # However old: a node does not become healthy because the bus is away.
        return f"unhealthy: {found.get('reason') or 'no reason is recorded'}", UNHEALTHY
    if age > OLD_SECONDS:
        return f"unknown: the agent last read this node's health {age:.0f} s ago", UNKNOWN
    return ("healthy", 0) if health in ("healthy", "degraded") else ("unknown: no verdict", UNKNOWN)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(FILE_BYTES_MAX))
    except FileNotFoundError:
        return {"problem": f"there is no {file}; is the agent running here?"}
    except (OSError, ValueError, RecursionError) as error:
        return {"problem": f"{file}: {error}"}
    return found if isinstance(found, dict) else {"problem": f"{file} is damaged"}
