"""`navarch-agent healthy`: whether this node is healthy, in milliseconds and without the bus.

For prologs, epilogs and health check programs. It imports the standard library alone, and reads the
files that the agent writes. The fleet's verdict decides; where that is old or not known, what the
agent itself sees does. Where nothing is known the node counts as healthy, because a monitor that is
down must not stop the cluster.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

FILE: Final = "health.json"
CONDITIONS_FILE: Final = "conditions.json"
"""Holds what the agent itself sees, and when it looked last."""
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
    directory = Path(os.environ.get("NAVARCH_STATE_DIR", STATE_DIR))
    text, code = judge(_read(directory / FILE), _read(directory / CONDITIONS_FILE), time.time())
    sys.stdout.write(f"{text}\n")
    return 0 if code == UNKNOWN and "--strict" not in arguments else code


def judge(found: dict[str, Any], seen: dict[str, Any], now: float) -> tuple[str, int]:
    """Return what to print, and the exit code under --strict.

    `found`: the fleet's verdict; `seen`: what the agent sees.
    """
    text, code = _verdict(found, now)
    severe = _severe(seen, now) if code == UNKNOWN else None
    if severe is None:
        return text, code
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(_number(severe.get("since"))))
    return f"unhealthy: {severe.get('message') or severe.get('name')}, since {since}", UNHEALTHY


def _severe(seen: dict[str, Any], now: float) -> dict[str, Any] | None:
    """Return a condition that the agent takes for a reason to give the node no work."""
    held = seen.get("held")
    if now - _number(seen.get("seen_at")) > OLD_SECONDS or not isinstance(held, list):
        return None
    severe = (each for each in held if isinstance(each, dict) and each.get("severe") is True)
    return next(severe, None)


def _verdict(found: dict[str, Any], now: float) -> tuple[str, int]:
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
