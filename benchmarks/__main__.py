"""`python -m benchmarks`: measure, print a table, write benchmarks/latest.json.

Every part runs with shipped settings; where one has to deviate, latest.json and the output say so.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import (
    agent_cost,
    cordon_latency,
    event_listing,
    event_streams,
    fault_wave,
    level_evaluation,
    node_listing,
    scheduler_cordon,
    security_cost,
    stress_runs,
    telemetry_ingest,
)
from benchmarks.machine import floor, machine

LATEST = Path(__file__).parent / "latest.json"

ROWS = (
    ("Kernel log line to cordon, p50", "kmsg_to_cordon_ms_p50", "ms", "<= 10"),
    ("Kernel log line to cordon, p99", "kmsg_to_cordon_ms_p99", "ms", "<= 50"),
    ("Telemetry ingested, one core", "telemetry_ingest_samples_per_second", "/s", ">= 20000"),
    ("Telemetry lost", "telemetry_lost", "samples", "0"),
    ("Telemetry decoded, one core", "telemetry_decode_samples_per_second", "/s", ""),
    ("Telemetry evaluated, one core", "level_evaluation_samples_per_second", "/s", ">= 20000"),
    ("Telemetry not evaluated", "level_evaluation_lost", "samples", "0"),
    ("`navarch events`, one core", "events_printed_per_cpu_second", "/s", ">= 10000"),
    ("1,000 nodes fail at once: last cordon", "wave_last_cordon_seconds", "s", "<= 3"),
    (
        "  last replacement started",
        "wave_last_replacement_started_seconds",
        "s",
        "<= 6",
    ),
    ("200 sagas at once: last done", "wave_200_last_done_seconds", "s", ""),
    ("Verdict to the scheduler's own cordon, p50", "scheduler_cordon_ms_p50", "ms", ""),
    ("Verdict to the scheduler's own cordon, p99", "scheduler_cordon_ms_p99", "ms", ""),
    ("  the scheduler's command alone, p50", "scheduler_command_ms_p50", "ms", ""),
    ("  the scheduler's command alone, p99", "scheduler_command_ms_p99", "ms", ""),
    ("200 simultaneous drains: last cordon", "drains_200_last_cordon_seconds", "s", ""),
    ("  last drained", "drains_200_last_drain_seconds", "s", ""),
    ("  200 commands alone, 8 at once", "drains_200_commands_alone_seconds", "s", ""),
    ("1,000 nodes simulated for 10 min", "simulation_1000_nodes_wall_seconds", "s", "<= 20"),
    ("  memory", "simulation_1000_nodes_memory_gib", "GiB", "<= 0.4"),
    ("5,000 nodes simulated for 30 min", "simulation_5000_nodes_wall_seconds", "s", "<= 180"),
    ("  memory", "simulation_5000_nodes_memory_gib", "GiB", "<= 1"),
    ("Gateway, before any stream: memory", "streams_gateway_mib_before", "MiB", ""),
    ("Gateway, 1,000 event streams: memory", "streams_gateway_mib", "MiB", ""),
    ("  nothing happens", "streams_idle_cores", "cores", ""),
    ("  one event on all streams: processor time", "streams_event_cpu_ms", "ms", ""),
    ("    of the 1,000 clients, in one process", "streams_clients_cpu_ms", "ms", ""),
    ("  ten events a second: delay, p50", "streams_delay_ms_p50", "ms", ""),
    ("  delay, p99", "streams_delay_ms_p99", "ms", "<= 1000"),
    ("  events missing", "streams_events_missing", "", "0"),
    *(
        (f"`navarch list`, {nodes}, {way}: {label}", f"listing_{name}_{way}_{figure}", "s", aim)
        for name, nodes, target in (
            ("small", "2 nodes", "<= 0.3"),
            ("large", "10,000 nodes", "<= 0.5"),
        )
        for way in ("bus", "http")
        for label, figure, aim in (
            ("first", "first_seconds", ""),
            ("then", "seconds", target),
            ("processor time", "cpu_seconds", ""),
        )
    ),
    ("Agent, 8 GPUs: memory", "agent_resident_mib", "MiB", "<= 45"),
    ("Agent, sampling each 15 s", "agent_cores_15s", "cores", "<= 0.003"),
    ("Agent, sampling each 1 s", "agent_cores_1s", "cores", "<= 0.02"),
    ("Agent, 1,600 kernel lines/s", "agent_cores_storm", "cores", "<= 0.02"),
    *(
        (f"{what}, {which}: {label}", f"{which}_{name}_{figure}", unit, "")
        for name, what in (
            ("fact", "Fact stored"),
            ("heartbeat", "Heartbeat"),
            ("query", "Query answered"),
        )
        for which in ("open", "secured")
        for label, figure, unit in (
            ("p50", "ms_p50", "ms"),
            ("p99", "ms_p99", "ms"),
            ("100 at once", "per_second", "/s"),
            ("server's processor time", "server_us", "us"),
        )
    ),
)
"""Label, the figure's name in latest.json, unit and target."""


class Part(NamedTuple):
    """Figures that are measured together."""

    label: str
    module: ModuleType
    measure: Callable[[], Awaitable[dict[str, Any]]]
    load: dict[str, Any]
    """What the measurement runs under, as chosen by the arguments."""


def _parts(arguments: argparse.Namespace) -> dict[str, Part]:
    faults, agents, seconds = arguments.faults, arguments.agents, arguments.agent_seconds
    return {
        "ingest": Part(
            "telemetry into the metrics service", telemetry_ingest, telemetry_ingest.measure, {}
        ),
        "levels": Part(
            "telemetry into the health-monitor", level_evaluation, level_evaluation.measure, {}
        ),
        "events": Part(
            f"`navarch events` prints {event_listing.EVENTS} events",
            event_listing,
            event_listing.measure,
            {"events": event_listing.EVENTS},
        ),
        "cordon": Part(
            f"{faults} faults under the telemetry of {agents} agents",
            cordon_latency,
            lambda: cordon_latency.measure(faults, agents),
            {
                "faults": faults,
                "nodes": cordon_latency.NODE_COUNT,
                "telemetry_agents": agents,
                "telemetry_interval_seconds": 1,
            },
        ),
        "wave": Part(
            f"{fault_wave.NODES} nodes that fail at once", fault_wave, fault_wave.measure, {}
        ),
        "scheduler": Part(
            f"{scheduler_cordon.AT_ONCE} drains at once at the scheduler",
            scheduler_cordon,
            scheduler_cordon.measure,
            {"faults": scheduler_cordon.ONE_BY_ONE},
        ),
        "agent": Part(
            f"three agents for {seconds:g} s",
            agent_cost,
            lambda: agent_cost.measure(seconds),
            {"agent_seconds": seconds},
        ),
        "security": Part(
            "the bus with accounts, TLS and limits, and open",
            security_cost,
            security_cost.measure,
            {"at_once": security_cost.AT_ONCE},
        ),
        "streams": Part(
            f"{event_streams.STREAMS} event streams of a gateway",
            event_streams,
            event_streams.measure,
            {"streams": event_streams.STREAMS, "events": event_streams.EVENTS},
        ),
        "list": Part("`navarch list`", node_listing, node_listing.measure, {}),
        "simulation": Part(
            "stress runs of 1,000 and of 5,000 nodes", stress_runs, stress_runs.measure, {}
        ),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--faults", type=int, default=120, help="kernel log lines (default: 120)")
    parser.add_argument("--agents", type=int, default=200, help="sending telemetry (default: 200)")
    parser.add_argument(
        "--agent-seconds", type=float, default=45, help="of measuring agents (default: 45)"
    )
    parser.add_argument("--output", type=Path, default=LATEST, help="where to write the figures")
    parser.add_argument(
        "--only",
        action="append",
        choices=[
            *("cordon", "events", "ingest", "levels", "wave", "scheduler", "agent", "security"),
            *("streams", "list", "simulation"),
        ],
        help="measure this part; the file keeps the figures of the others",
    )
    return parser.parse_args()


async def _measure(part: Part) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures of one part, and how they were measured."""
    start, floor_before = datetime.now(UTC), floor()
    figures = await part.measure()
    measured = {
        "date": start.isoformat(timespec="seconds"),
        "commit": _commit(),
        "seconds": round((datetime.now(UTC) - start).total_seconds()),
        "setup": " ".join((part.module.__doc__ or "").split()),
        **part.load,
        "deviations": getattr(part.module, "DEVIATIONS", {}),
        "machine": machine(),
        "machine_floor": {"before": floor_before, "after": floor()},
    }
    return figures, measured


def _table(figures: dict[str, Any]) -> Table:
    table = Table("Figure", "Measured", "Unit", "Target")
    for column in table.columns[1:2]:
        column.justify = "right"
    for label, name, unit, target in ROWS:
        if name in figures:
            table.add_row(label, f"{figures[name]:,}", unit, target)
        if name == "kmsg_to_cordon_ms_p99" and name in figures:
            table.add_row(
                "  telemetry meanwhile", f"{figures['telemetry']['per_second']}", "/s", ""
            )
            for hop, took in figures.get("hops_ms", {}).items():
                table.add_row(f"  {hop}", f"{took['p50']} / {took['p99']}", "ms, p50 / p99", "")
    return table


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
    """Measure the chosen parts and write their figures."""
    arguments = _arguments()
    console = Console(highlight=False)
    written: dict[str, Any] = {"parts": {}}
    if arguments.only and arguments.output.exists():
        written |= json.loads(arguments.output.read_bytes())
    written["command"] = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    written["everything_on"] = "one machine: nats-server, services, agents, receiver, load"
    measured: dict[str, Any] = {}
    for name, part in _parts(arguments).items():
        if arguments.only and name not in arguments.only:
            continue
        console.print(f"Measuring {part.label} …")
        figures, written["parts"][name] = uvloop.run(_measure(part))
        measured |= figures
        for setting, deviation in written["parts"][name]["deviations"].items():
            console.print(f"  not as shipped: {setting}: {deviation}")
    console.print(_table(measured))
    data = msgspec.json.encode(written | measured)
    arguments.output.write_bytes(msgspec.json.format(data, indent=2) + b"\n")
    console.print(f"Written to {arguments.output}")


if __name__ == "__main__":
    main()
