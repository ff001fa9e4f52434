"""Runs `navarch-agent healthy` and `connected`, in milliseconds and without the bus.

`healthy` is for prologs, epilogs and health check programs. The fleet's verdict decides; where that
is old or not known, what the agent itself sees does. Where nothing is known the node counts as
healthy, because a monitor that is down must not stop the cluster. `connected` is the readiness
probe of an agent's pod. Both import the standard library alone, and read files of the agent.
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
CONNECTED_SECONDS_MAX: Final = 45.0
"""An agent that is connected reads its node's record every 15 s."""
FILE_BYTES_MAX: Final = 65_536
UNHEALTHY: Final = 1
UNKNOWN: Final = 3
NOT_CONNECTED: Final = 1
CONNECTED_USAGE: Final = """\
usage: navarch-agent connected

Prints `connected`, or why not. Exit code 0: the agent read its node's record from the bus within 45
seconds; 1: it did not, or the node is not in the fleet.
"""
USAGE: Final = """\
usage: navarch-agent healthy [--strict]

Prints `healthy`, or why not. Exit code 0: healthy, or nothing is known; 1: unhealthy; 3, with
--strict alone: nothing is known, or the agent has not heard from the fleet for five minutes.
"""


def answered(arguments: list[str]) -> int | None:
    """Run one of the two commands and return its exit code; None where another is given."""
    match arguments:
        case ["healthy", *options]:
            return run(options)
        case ["connected", *options]:
            return run_connected(options)
    return None


def run(arguments: list[str]) -> int:
    """Print the node's health; return the exit code."""
    if set(arguments) - {"--strict"}:
        sys.stderr.write(USAGE)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    directory = Path(os.environ.get("NAVARCH_STATE_DIR", STATE_DIR))
    text, code = judge(_read(directory / FILE), _read(directory / CONDITIONS_FILE), time.time())
    sys.stdout.write(f"{text}\n")
    return 0 if code == UNKNOWN and "--strict" not in arguments else code


def run_connected(arguments: list[str]) -> int:
    """Print whether the agent reads its node's record from the bus; return the exit code."""
    if arguments:
        sys.stderr.write(CONNECTED_USAGE)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    directory = Path(os.environ.get("NAVARCH_STATE_DIR", STATE_DIR))
    problem = why_not_connected(_read(directory / FILE), time.time())
    sys.stdout.write(f"not connected: {problem}\n" if problem else "connected\n")
    return NOT_CONNECTED if problem else 0


def why_not_connected(found: dict[str, Any], now: float) -> str:
    """Return why the agent does not count as connected; empty if it does.

    `found`: the copy of its node's record.
    """
    if problem := found.get("problem"):
        return str(problem)
    age = now - _number(found.get("read_at"))
    if abs(age) > CONNECTED_SECONDS_MAX:
        return f"the agent last read its node's record {age:.0f} s ago"
    return ""


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
