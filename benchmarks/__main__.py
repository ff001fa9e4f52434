"""`python -m benchmarks`: measure, print a table, write benchmarks/latest.json."""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import agent_cost, cordon, ingest, judging, simulation, wave
from benchmarks.machine import machine

LATEST = Path(__file__).parent / "latest.json"

ROWS = (
    ("Kernel log line to cordon, p50", "kmsg_to_cordon_ms_p50", "ms", "<= 10"),
    ("Kernel log line to cordon, p99", "kmsg_to_cordon_ms_p99", "ms", "<= 50"),
    ("Telemetry taken in, one core", "telemetry_ingest_samples_per_second", "/s", ">= 20000"),
    ("Telemetry lost", "telemetry_lost", "samples", "0"),
    ("Telemetry decoded, one core", "telemetry_decode_samples_per_second", "/s", ""),
    ("Telemetry judged, one core", "judging_ingest_samples_per_second", "/s", ">= 20000"),
    ("Telemetry not judged", "judging_lost", "samples", "0"),
    ("1,000 nodes sick at once: last cordon", "wave_last_cordon_seconds", "s", "<= 3"),
    (
        "  last replacement started",
        "wave_last_replacement_started_seconds",
        "s",
        "<= 6",
    ),
    ("200 sagas at once: last done", "wave_200_last_done_seconds", "s", ""),
    ("1,000 nodes simulated for 10 min", "simulation_1000_nodes_wall_seconds", "s", "<= 20"),
    ("  memory", "simulation_1000_nodes_memory_gib", "GiB", "<= 0.4"),
    ("5,000 nodes simulated for 30 min", "simulation_5000_nodes_wall_seconds", "s", "<= 180"),
    ("  memory", "simulation_5000_nodes_memory_gib", "GiB", "<= 1"),
    ("Agent, 8 GPUs: memory", "agent_resident_mib", "MiB", "<= 45"),
    ("Agent, sampling each 15 s", "agent_cores_15s", "cores", "<= 0.003"),
    ("Agent, sampling each 1 s", "agent_cores_1s", "cores", "<= 0.02"),
    ("Agent, 1,600 kernel lines/s", "agent_cores_storm", "cores", "<= 0.02"),
)
"""What is shown: words, the figure's name in latest.json, its unit, and what it is to be."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--faults", type=int, default=120, help="kernel log lines (default: 120)")
    parser.add_argument("--agents", type=int, default=200, help="sending telemetry (default: 200)")
    parser.add_argument(
        "--agent-seconds", type=float, default=45, help="of watching agents (default: 45)"
    )
    parser.add_argument("--output", type=Path, default=LATEST, help="where to write the figures")
    parser.add_argument(
        "--only",
        choices=["cordon", "ingest", "judging", "wave", "agent", "simulation"],
        help="print one part, write nothing",
    )
    return parser.parse_args()


async def _measure(told: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    parts: dict[str, tuple[str, Callable[[], Awaitable[dict[str, Any]]]]] = {
        "ingest": ("telemetry into the metrics service", ingest.measure),
        "judging": ("telemetry into the health-monitor", judging.measure),
        "cordon": (
            f"{told.faults} faults under the telemetry of {told.agents} agents",
            lambda: cordon.measure(told.faults, told.agents),
        ),
        "wave": (f"{wave.NODES} nodes sick at once", wave.measure),
        "agent": (
            f"three agents for {told.agent_seconds:g} s",
            lambda: agent_cost.measure(told.agent_seconds),
        ),
        "simulation": ("stress runs of 1,000 and of 5,000 nodes", simulation.measure),
    }
    figures: dict[str, Any] = {}
    for name, (words, measure) in parts.items():
        if told.only in (None, name):
            say(f"Measuring {words} …")
            figures |= await measure()
    return figures


def _table(figures: dict[str, Any]) -> Table:
    table = Table("Figure", "Measured", "Unit", "Aim")
    for column in table.columns[1:2]:
        column.justify = "right"
    for words, name, unit, aim in ROWS:
        if name in figures:
            table.add_row(words, f"{figures[name]:,}", unit, aim)
        if name == "kmsg_to_cordon_ms_p99" and name in figures:
            table.add_row(
                "  telemetry meanwhile", f"{figures['telemetry']['per_second']}", "/s", ""
            )
            for hop, took in figures.get("hops_ms", {}).items():
                table.add_row(f"  {hop}", f"{took['p50']} / {took['p99']}", "ms, p50 / p99", "")
    return table


def _setup(told: argparse.Namespace) -> dict[str, Any]:
    return {
        "faults": told.faults,
        "telemetry_agents": told.agents,
        "telemetry_interval_seconds": 1,
        "nodes": cordon.NODES_WANTED,
        "agent_seconds": told.agent_seconds,
        "everything_on": "one machine: nats-server, five services, agents, receiver, load",
        **{
            part.__name__.rpartition(".")[2]: " ".join((part.__doc__ or "").split())
            for part in (cordon, ingest, judging, agent_cost, simulation)
        },
    }


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def main() -> None:
    """Do it."""
    told = _arguments()
    console = Console(highlight=False)
    began = datetime.now(UTC)
    figures = uvloop.run(_measure(told, console.print))
    console.print(_table(figures))
    if told.only:
        return
    written = {
        "date": began.isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "commit": _commit(),
        "seconds": round((datetime.now(UTC) - began).total_seconds()),
        "machine": machine(),
        "setup": _setup(told),
        **figures,
    }
    told.output.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=2) + b"\n")
    console.print(f"Written to {told.output}")


if __name__ == "__main__":
    main()
