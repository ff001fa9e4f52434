"""Wall time and peak memory of the shipped stress runs, each in a process of its own.

1,000 nodes for 10 simulated minutes and 5,000 nodes for 30, from the first launch on: the real
health-monitor, pool-manager, provisioner and notifier in virtual time on the in-memory bus, agents
that send a heartbeat every 10 s and a sample every 15 s, failures and outages as in
config/scenarios/stress. Reports are built but not written. Two runs with the same history hash were
identical. The floor, in the same process, is the empty loop of the same events: as many heartbeats
and samples of as many agents in virtual time, that do nothing.
"""

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.comparison import medians

STRESS: Final = Path(__file__).parent.parent / "config" / "scenarios" / "stress"
RUNS: Final = {"1000_nodes": "thousand-nodes.yaml", "5000_nodes": "five-thousand-nodes.yaml"}
KIB: Final = 1024
INTERVALS_SECONDS: Final = (10.0, 15.0)
"""Of heartbeats and of samples."""


async def measure() -> dict[str, Any]:
    """Run each file in its own process."""
    figures: dict[str, Any] = {}
    for name, file in RUNS.items():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.stress_runs", file, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{file}: the run ended with {process.returncode}")
        ran = json.loads(output)
        floor, history = ran.pop("floor"), ran.pop("history")
        found = medians([(ran, floor)]) | {"history": history}
        figures |= {f"simulation_{name}_{key}": each for key, each in found.items()}
    return figures


def _run(file: str) -> dict[str, Any]:
    from services.simulator.inputs.scenario.scenario_file import read_file  # noqa: PLC0415 - in the child
    from services.simulator.inputs.stress import stress_entry  # noqa: PLC0415

    scenario = read_file(STRESS / file)
    spec = msgspec.structs.replace(scenario.stress, log_file="")
    start = time.monotonic()
    report = stress_entry.simulate(spec, name=scenario.name, base=scenario.configuration)
    wall_seconds = time.monotonic() - start
    return {
        "wall_seconds": wall_seconds,
        "processor_seconds": time.process_time(),
        "memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB / KIB, 2),
        "history": report.history[:16],
        "failures": report.summary.failures,
        "repaired": report.summary.repairs,
        "floor": _floor(report.summary.nodes_wanted, float(spec.duration)),
    }


def _floor(nodes: int, seconds: float) -> dict[str, float]:
    """Run as many timers of heartbeats and samples in virtual time; return the seconds used."""
    from services.simulator.engine import virtual_time  # noqa: PLC0415 - in the child

    async def repeat(interval_seconds: float) -> None:
        for _ in range(int(seconds / interval_seconds)):
            await asyncio.sleep(interval_seconds)

    async def work() -> None:
        await asyncio.gather(*(repeat(each) for each in INTERVALS_SECONDS for _ in range(nodes)))

    start, used = time.monotonic(), time.process_time()
    virtual_time.run(work)
    return {
        "wall_seconds": time.monotonic() - start,
        "processor_seconds": time.process_time() - used,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_run(sys.argv[1])))
