"""The claim file on a machine that you own, and the scripts that read and change it. Pure.

A claim is one file in a folder of the machine, named after its state:

    taken   a launch wants the machine, and may still choose another
    held    it is an instance
    going   it is being released, and the wipe command runs or has failed

Every command is one script under the folder's lock. It changes only the claim with its token, and
always ends by reporting the claim: so each may be sent again, by any replica. A change is a rename
after a sync: a machine that loses power keeps either the old or the new claim.
"""

import base64
import shlex
from typing import Final, Literal

import msgspec

ClaimState = Literal["free", "taken", "held", "going"]
ClaimCommand = Literal["look", "take", "hold", "drop", "release", "reboot"]

LOCK_SECONDS: Final = 10
REBOOT_SECONDS: Final = 1
"""Delay of a reboot, so that the answer is still sent."""
OUTPUT_CHARS_MAX: Final = 500
MARK: Final = "navarch:"

CANNOT_WRITE: Final = 73
BUSY: Final = 75


class MachineClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a machine; fields are only added, because claims outlive releases."""

    fleet: str
    pool: str
    name: str
    token: str
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    provider: str = ""
    tags: dict[str, str] = {}


class ClaimReport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a machine's report of its claim."""

    state: ClaimState
    token: str = ""
    """Token of the claim; empty: no claim."""
    claim: MachineClaim | None = None
    """None: there is none, or it is unreadable; the machine counts as claimed then."""
    free_seconds: int | None = None
    """Seconds since it was released; None: never."""
    wipe_status: int | None = None
    """Exit status of the last failed wipe command."""
    wipe_output: str = ""
    rebooting: bool = False

    def is_of(self, token: str) -> bool:
        """Return whether the machine is claimed by this token and not being released."""
        return self.token == token and self.state in ("taken", "held")


def script(
    order: ClaimCommand,
    folder: str,
    *,
    token: str = "",
    claim: MachineClaim | None = None,
    command: str = "",
) -> str:
    """Return the shell script of an order; `command` wipes or reboots the machine."""
    body = base64.b64encode(msgspec.json.encode(claim)).decode() if claim is not None else ""
    place = f'"$HOME"/{shlex.quote(folder[2:])}' if folder.startswith("~/") else shlex.quote(folder)
    lines = [
        f"d={place}; me={shlex.quote(token)}; umask 077",
        f'[ -d "$d" ] || mkdir -p "$d"; exec 9>>"$d/lock" || exit {CANNOT_WRITE}',
        f"flock -w {LOCK_SECONDS} 9 || exit {BUSY}",
        "look() { state=free; tok=; body=; for s in taken held going; do",
        '  if [ -e "$d/$s" ]; then state=$s; read -r tok body < "$d/$s"; fi; done; }',
        # The content must be on disk before the rename.
        'keep() { sync "$1" && mv "$1" "$2" && sync "$d"; }',
        'freed() { rm -f "$d/taken" "$d/going" "$d/wiped" && : > "$d/released"; }',
        "look",
        *_change(order, body, command),
        "look",
        f'echo "{MARK} state $state $tok $body"',
        'if [ -e "$d/released" ]; then now=$(date +%s); at=$(date -r "$d/released" +%s)',
        f'  echo "{MARK} free $((now - at))"; fi',
        f'if [ -n "$failed" ]; then echo "{MARK} wipe $failed"; fi',
        f'echo "{MARK} end"',
    ]
    return "\n".join(lines)


def _change(order: ClaimCommand, body: str, command: str) -> tuple[str, ...]:
    """Return the lines that perform an order."""
    match order:
        case "look":
            return ('[ "$state" = going ] && [ -e "$d/wiped" ] && read -r failed < "$d/wiped"',)
        case "take":
            write = f'echo "$me" {body} > "$d/new" && keep "$d/new" "$d/taken"'
            return ("if [ $state = free ]; then", f"  {write} || exit {CANNOT_WRITE}; fi")
        case "hold":
            return (
                'if [ $state = taken ] && [ "$tok" = "$me" ]; then',
                f'  keep "$d/taken" "$d/held" || exit {CANNOT_WRITE}; fi',
            )
        case "drop":
            return ('if [ $state = taken ] && [ "$tok" = "$me" ]; then freed; fi',)
        case "release":
            return _release(command)
        case "reboot":
            later = f"sleep {REBOOT_SECONDS}; {command}"
            return (
                'if [ $state = held ] && [ "$tok" = "$me" ]; then',
                f"  (setsid bash -c {shlex.quote(later)} > /dev/null 2>&1 < /dev/null 9>&- &)",
                f'  echo "{MARK} rebooting"',
                "fi",
            )


def _release(command: str) -> tuple[str, ...]:
    """Release the machine; with a wipe command only after its success, however long it takes."""
    if not command:
        return (
            'if [ "$tok" = "$me" ]; then [ $state = held ] && keep "$d/held" "$d/going"; freed; fi',
        )
    text = base64.b64encode(command.encode()).decode()
    # The command outlives this session, runs once at a time, and holds none of our locks.
    wipe = "; ".join(
        (
            'flock -n 8 || exit 0; cd /; echo $wipe | base64 -d > "$d/wipe.sh"',
            'bash "$d/wipe.sh" > "$d/wipe.log" 2>&1 < /dev/null 8>&- 9>&-; rc=$?',
            'exec 9>>"$d/lock"; flock 9',
            'if [ $rc -eq 0 ]; then rm -f "$d/going" "$d/wiped"; : > "$d/released"; exit 0; fi',
            f'echo $rc $(tail -c {OUTPUT_CHARS_MAX} "$d/wipe.log" | base64 -w0) > "$d/wiped"',
        )
    )
    start = f"setsid bash -c {shlex.quote(wipe)} > /dev/null 2>&1 < /dev/null 9>&-"
    return (
        'if [ "$tok" = "$me" ] && [ $state = taken ]; then freed; look; fi',
        'if [ "$tok" = "$me" ] && [ $state = held ]; then keep "$d/held" "$d/going"; look; fi',
        'if [ "$tok" = "$me" ] && [ $state = going ]; then',
        '  if [ -e "$d/wiped" ]; then read -r failed < "$d/wiped"; rm -f "$d/wiped"; fi',
        f'  (export d wipe={text}; exec 8>>"$d/wipe.lock"; {start} &)',
        "fi",
    )


def read(output: str) -> ClaimReport | None:
    """Parse a script's output; None if its end is missing; other programs' lines are ignored."""
    state: ClaimState = "free"
    fields: dict[str, list[str]] = {}
    for line in output.splitlines():
        words = line.split()
        if words[:1] == [MARK] and len(words) > 1:
            fields[words[1]] = words[2:]
    if "end" not in fields or not fields.get("state"):
        return None
    state, *rest = fields["state"]  # type: ignore[assignment]
    wipe = fields.get("wipe", [])
    return ClaimReport(
        state=state,
        token=rest[0] if rest else "",
        claim=_claim(rest[1] if len(rest) > 1 else ""),
        free_seconds=int(fields["free"][0]) if fields.get("free") else None,
        wipe_status=int(wipe[0]) if wipe and wipe[0].isdigit() else None,
        wipe_output=" ".join(_decode(wipe[1] if len(wipe) > 1 else "").split()),
        rebooting="rebooting" in fields,
    )


def _decode(text: str) -> str:
    try:
        return base64.b64decode(text).decode(errors="replace")
    except ValueError:
        return ""


def _claim(text: str) -> MachineClaim | None:
    try:
        return msgspec.json.decode(base64.b64decode(text), type=MachineClaim)
    except (ValueError, msgspec.DecodeError):
        return None
