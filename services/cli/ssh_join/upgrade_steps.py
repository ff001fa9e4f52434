"""Decides on which machines an agent is brought to the release of serve, and in which order. Pure.

The release is written on the machine once the agent runs with it and reads its node's record from
the bus: an upgrade that was killed at any step is begun again there, and ends whole.
"""

from collections.abc import Sequence
from typing import Final

from services.cli.ssh_join.host_steps import (
    AGENT,
    HOME,
    LOCK,
    LOCK_SECONDS,
    MARK,
    START,
    STATE,
    HostState,
    Target,
    why_no_room,
    why_not_ours,
)

WAVE_FIRST: Final = 1
WAVE_GROWTH: Final = 4
WAVE_MAX: Final = 32
BACK_SECONDS: Final = 90
"""For which an agent that was started again may take to read its node's record."""
STOP_SECONDS: Final = 20
"""For which the shell that keeps an agent running may take to end."""
RELEASE: Final = f"{HOME}/release"


def waves(targets: Sequence[Target]) -> list[list[Target]]:
    """Return the machines in the waves in which they are upgraded: the first is one machine."""
    found, size, left = [], WAVE_FIRST, list(targets)
    while left:
        found.append(left[:size])
        left = left[size:]
        size = min(size * WAVE_GROWTH, WAVE_MAX)
    return found


def why_not_upgraded(state: HostState, pool: str, node: str, *, is_known: bool) -> str:
    """Return why the agent of a machine is not upgraded, in a sentence; empty: it may be."""
    if not state.joined:
        return "it has joined no pool: `navarch join` it, without --upgrade"
    return why_not_ours(state, pool, node, is_known=is_known) or why_no_room(state)


def release_script(release: str) -> str:
    """Return what writes the release of the agent that runs."""
    return f"echo {release} > {RELEASE}\n"


def restart_script(release: str) -> str:
    """Return what starts the agent again, waits until it is back, and writes its release."""
    return f"""\
set -e; umask 022
exec 8>{LOCK}; flock -w {LOCK_SECONDS} 8
if [ -d /run/systemd/system ]; then systemctl stop navarch-agent
elif [ -s {STATE}/supervisor.pid ] && ! flock -n {STATE}/supervisor.lock true; then
  kill -TERM -- -$(cat {STATE}/supervisor.pid) 2>/dev/null || true
  flock -w {STOP_SECONDS} {STATE}/supervisor.lock true
fi
# What the agent before has written must not count as the new one's.
rm -f {STATE}/health.json
{START}
for _ in $(seq {BACK_SECONDS}); do
  if said=$({AGENT} connected); then
    {release_script(release).strip()}; echo "{MARK} back yes"; exit 0; fi
  sleep 1
done
echo "{MARK} back no"; echo "$said"
"""
