"""Turns a pool's setup commands into idempotent scripts. Pure.

Each script takes a lock on the node, looks for the marker that a successful command has left, and
runs the command only without one. So a provisioner that dies costs a repetition of the check, never
of the command; and a command that is still running is waited for.
"""

import base64
import hashlib
import shlex
from collections.abc import Mapping
from typing import Final

from schemas.saga_params import SetupSpec
from services.settings.placeholders import fill, unknown

COMMAND_CHARS_MAX: Final = 32_768
OUTPUT_CHARS_MAX: Final = 2_000
TEXT_CHARS_MAX: Final = 200
TAIL_CHARS_MAX: Final = 500
DONE_BEFORE: Final = "navarch: done before"


class SetupCommandError(ValueError):
    """A command that cannot be run as it is written."""


def render(command: str, values: Mapping[str, str]) -> str:
    """A command with its variables filled in; SetupError where it asks for what there is not."""
    if len(command) > COMMAND_CHARS_MAX:
        raise SetupCommandError(
            f"is longer than {COMMAND_CHARS_MAX} characters; fetch a script instead"
        )
    if wrong := unknown(command, tuple(values)):
        raise SetupCommandError(f"asks for {wrong[1]}, which is none of {', '.join(values)}")
    return fill(command, values)


def script(command: str, number: int, token: str, spec: SetupSpec) -> str:
    """The shell text that runs a command once on its node, however often it is sent."""
    mark = f"{number}-{hashlib.sha256(command.encode()).hexdigest()[:12]}"
    body = base64.b64encode(command.encode()).decode()
    root = "sudo -n " if spec.sudo and spec.user != "root" else ""
    return "\n".join(
        (
            f'd="$HOME/.navarch/setup/"{shlex.quote(token)}',
            'mkdir -p "$d" && chmod 700 "$d" && exec 9>"$d/lock" && flock 9 || exit 125',
            f'if [ -e "$d/{mark}.done" ]; then echo "{DONE_BEFORE}"; exit 0; fi',
            f'echo {body} | base64 -d > "$d/{mark}.sh"',
            # What it starts for good must not hold the lock, nor wait for our standard input.
            f'{root}bash "$d/{mark}.sh" > "$d/{mark}.log" 2>&1 < /dev/null 9>&-',
            "rc=$?",
            f'rm -f "$d/{mark}.sh"',  # it may hold credentials
            f'[ $rc -eq 0 ] && : > "$d/{mark}.done"',
            f'tail -c {OUTPUT_CHARS_MAX} "$d/{mark}.log"',
            "exit $rc",
        )
    )


def first_line(command: str) -> str:
    """Return a command's first line, shortened."""
    lines = command.strip().splitlines() or [""]
    more = " …" if len(lines) > 1 else ""
    return lines[0][:TEXT_CHARS_MAX] + more


def failure_message(number: int, of: int, text: str, status: int, output: str) -> str:
    """Why the setup ended, in a sentence with the end of what the command wrote."""
    said = " ".join(output.split())[-TAIL_CHARS_MAX:]
    tail = f"; it wrote: {said}" if said else ""
    return f"setup command {number} of {of} ({text}) ended with {status}{tail}"
