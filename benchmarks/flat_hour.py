"""`python -m benchmarks.flat_hour`: three servers with 200 agents for an hour, and what grows.

nats-server three times, and the services as real processes with shipped settings; the agents are
scripted in one process. Every few minutes a node dies at its provider and is replaced, as in a
fleet of ten thousand. Each minute the memory and open files of every process and the bytes of its
log and store are noted. Printed are the figures at the end of the first third and at the end, and
the line of any log that was repeated most.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.scripted_fleet import ScriptedFleet, remove_instance, running_fleet

NODES: Final = 200
SERVERS: Final = 3
MINUTES: Final = 60
LOOK_SECONDS: Final = 60.0
DEATH_EVERY_MINUTES: Final = 5
REPEATED_MAX: Final = 60
"""No line of a log may be repeated more often in an hour."""
MEMORY_GROWTH_MAX: Final = 1.15
"""Of a process between the first third and the end. A service collects reference cycles only after
100,000 objects, so that its memory may rise by megabytes and fall again."""
PAGE_KIB: Final = 4


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * PAGE_KIB / 1024


def _bytes_below(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def look(fleet: ScriptedFleet, directory: Path) -> dict[str, float]:
    """Return memory, open files and bytes on disk of every part, by the part's name."""
    pids = {each.name: each.pid for each in fleet.servers} | fleet.services
    found: dict[str, float] = {}
    for name, pid in pids.items():
        found[f"{name} MiB"] = round(_resident_mib(pid), 1)
        found[f"{name} files"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    for log in sorted(directory.rglob("*.log")):
        found[f"{log.parent.name}/{log.name} bytes"] = log.stat().st_size
    for server in fleet.servers:
        store = directory / "nats" / server.name
        found[f"{server.name} store KiB"] = _bytes_below(store) // 1024
    return found


def sizes(directory: Path) -> dict[Path, int]:
    """Return how many bytes each log has."""
    return {log: log.stat().st_size for log in directory.rglob("*.log")}


def most_repeated(directory: Path, begun: dict[Path, int]) -> tuple[int, str]:
    """Return the line that a log repeats most often, without times, numbers and names.

    `begun`: the sizes of the logs when the fleet had started.
    """
    most = (0, "")
    for log in directory.rglob("*.log"):
        counted: Counter[str] = Counter()
        for line in log.read_bytes()[begun.get(log, 0) :].decode(errors="replace").splitlines():
            text = re.sub(r"^\[\d+\] \S+ \S+ ", "", line)
            if line.startswith("{"):
                logged = json.loads(line)
                text = f"{logged.get('level')} {logged.get('message', logged.get('msg'))}"
            counted[re.sub(r"[0-9a-f]{8,}|\d+", "#", text)] += 1
        for text, times in counted.most_common(1):
            most = max(most, (times, f"{log.name}: {text}"))
    return most


async def measure(directory: Path, nodes: int, minutes: int, say: Any = print) -> dict[str, Any]:
    """Run the fleet, and return what each part had at the end of the first third and at the end."""
    pool = {"min_nodes": nodes, "max_nodes": nodes + 5}
    looks: list[dict[str, float]] = []
    async with running_fleet(directory, pool, servers=SERVERS) as fleet:
        say(f"{nodes} nodes in service after {await fleet.wait_for_nodes(nodes):.1f} s")
        begun = sizes(directory)
        for minute in range(1, minutes + 1):
            if minute % DEATH_EVERY_MINUTES == 1:
                remove_instance(fleet.provider, min(fleet.agents.instances()))
            await asyncio.sleep(LOOK_SECONDS)
            looks.append(look(fleet, directory))
            say(f"{minute} {json.dumps(looks[-1])}")
        await fleet.wait_for_nodes(nodes)
    early, late = looks[len(looks) // 3], looks[-1]
    times, line = most_repeated(directory, begun)
    return {
        "minutes": minutes,
        "nodes": nodes,
        "repeated_line": line,
        "repeated_times": times,
        "parts": {name: [early[name], late[name]] for name in late if name in early},
    }


def grown(figures: dict[str, Any]) -> list[str]:
    """Return what is not flat: memory that grows, files that stay open, a line without end."""
    found = []
    for name, (early, late) in figures["parts"].items():
        if name.endswith(" MiB") and late > early * MEMORY_GROWTH_MAX:
            found.append(f"{name}: {early} to {late}")
        if name.endswith(" files") and late > early + 5:
            found.append(f"{name}: {early} to {late}")
    if figures["repeated_times"] > REPEATED_MAX:
        found.append(f"{figures['repeated_times']} times: {figures['repeated_line']}")
    return found


def main() -> int:
    """Exit with 0 if everything was flat."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flat_hour", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--minutes", type=int, default=MINUTES)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flat-hour-", ignore_cleanup_errors=True) as place:
        figures = uvloop.run(measure(Path(place), arguments.nodes, arguments.minutes))
    print(json.dumps(figures))
    for each in (wrong := grown(figures)):
        print("not flat:", each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
