"""Turns a pool's setup commands into idempotent scripts. Pure.

Each script takes a lock on the node and runs the command unless a marker shows that it has
succeeded. So after a crash of the provisioner the check is repeated, but not the command, and a
running command is waited for.
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
    """A command that cannot be run as written."""


def render_command(command: str, values: Mapping[str, str]) -> str:
    """Render a command's variables; SetupCommandError if one is unknown."""
    if len(command) > COMMAND_CHARS_MAX:
        raise SetupCommandError(
            f"is longer than {COMMAND_CHARS_MAX} characters; fetch a script instead"
        )
    if wrong := unknown(command, tuple(values)):
        raise SetupCommandError(f"names {wrong[1]}, which is none of {', '.join(values)}")
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
            # Its background processes must not hold the lock or read our standard input.
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
    """Say which command failed, with the end of its output."""
    tail = " ".join(output.split())[-TAIL_CHARS_MAX:]
    tail = f"; it wrote: {tail}" if tail else ""
    return f"setup command {number} of {of} ({text}) ended with {status}{tail}"
