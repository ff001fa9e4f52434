"""Simulates what a host does when its agent recovers it: reset GPUs, reboot the host.

The agents of the local provider run this program instead of `nvidia-smi` and `systemctl reboot`.
A reset removes from the GPUs' state file the injected faults that a reset clears. A reboot ends the
agent and starts it again as another boot with an empty kernel log; it outlives the agent that
requested it, and may be cut off anywhere: the provider's own reboot completes it.
"""

import argparse
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from services.primitives.atomic_files import write_secret
from services.primitives.module_names import installed_name
from services.provisioner.providers import local_process as process
from services.provisioner.providers.local_gpus import (
    after_reboot,
    after_reset,
    reset_problem,
    write_text,
)

MODULE: Final = installed_name("services.provisioner.providers.local_host")
KMSG: Final = "kmsg"
NVML_STATE: Final = "nvml-state"
BOOT_ID: Final = "boot-id"
LOCKS: Final = ".locks"
START: Final = "start.json"
MUTEX_SECONDS_MAX: Final = 15.0
FAILED: Final = 1


class AgentStart(msgspec.Struct, frozen=True, kw_only=True):
    """Says how the instance's agent is started; only its owner may read the file."""

    command: tuple[str, ...]
    environment: dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(prog="local_host", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    reset = commands.add_parser("nvidia-smi")
    reset.add_argument("--gpu-reset", action="store_true", required=True)
    reset.add_argument("-i", default="", help="UUIDs with commas; none: every GPU")
    reboot = commands.add_parser("reboot")
    reboot.add_argument("place", type=Path)
    given = parser.parse_args(arguments)
    if given.command == "reboot":
        return _reboot(given.place)
    return _reset(os.environ, [each for each in given.i.split(",") if each])


def _reset(environment: Mapping[str, str], uuids: Sequence[str]) -> int:
    path = Path(environment["NAVARCH_NVML_STATE"])
    text = path.read_text(encoding="utf-8")
    if problem := reset_problem(text, uuids):
        print(problem)  # noqa: T201
        return FAILED
    write_text(path, after_reset(text, uuids))
    print(f"{', '.join(uuids) or 'All GPUs'} successfully reset. All done.")  # noqa: T201
    return 0


def _reboot(place: Path) -> int:
    with process.mutex(place.parent / LOCKS / place.name, MUTEX_SECONDS_MAX):
        if not place.exists():
            return FAILED
        start = msgspec.json.decode((place / START).read_bytes(), type=AgentStart)
        process.stop(place)
        boot_id = start_new_boot(place)
        environment = start.environment | {"NAVARCH_BOOT_ID": boot_id}
        process.spawn(place, start.command, environment)
    return 0


def start_new_boot(place: Path) -> str:
    """Give an instance another boot ID and an empty kernel log, as a start of its host does."""
    boot_id = str(uuid.uuid4())
    (place / BOOT_ID).write_text(boot_id, encoding="ascii")
    (place / KMSG).write_bytes(b"")
    state = place / NVML_STATE
    write_text(state, after_reboot(state.read_text(encoding="utf-8")))
    return boot_id


def write_agent_start(place: Path, start: AgentStart) -> None:
    """Store how the agent is started, before it is started."""
    write_secret(place / START, msgspec.json.encode(start).decode(), synced=False)


if __name__ == "__main__":
    sys.exit(main())
