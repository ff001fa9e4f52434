"""`python -m benchmarks`: measure, print each figure beside its floor, write latest.json.

Every part runs with shipped settings; where one has to deviate, latest.json and the output say so.
A figure's floor is the least that this machine needs for the same messages, measured in the same
run; the ratio of the two is kept and compared. With `--quick` the parts of the hot paths run for a
few rounds, their ratios are compared with those of latest.json, and nothing is written there.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import (
    agent_cost,
    command_start,
    comparison,
    cordon_latency,
    event_listing,
    event_streams,
    fault_wave,
    flooded_cordon,
    level_evaluation,
    node_listing,
    scheduler_cordon,
    security_cost,
    stress_runs,
    telemetry_ingest,
)
from benchmarks.figure_rows import ROWS
from benchmarks.machine import floor, machine
from benchmarks.served import Effort

FOLDER: Final = Path(__file__).parent
LATEST: Final = FOLDER / "latest.json"
HISTORY: Final = FOLDER / "history.jsonl"
FAULTS_PER_ROUND: Final = 20
QUICK_FAULTS: Final = 12
"""Of each round."""
FLOODED_FAULTS: Final = 10
"""Of each round and flood."""
AGENTS: Final = 200
"""That send telemetry while faults are measured."""

WIDTH: Final = 140
"""Of the table where the output is no terminal."""

Measure = Callable[[], Awaitable[dict[str, Any]]]


class Measured(NamedTuple):
    """Figures of a part, and how they were measured."""

    figures: dict[str, Any]
    about: dict[str, Any]


class Part(NamedTuple):
    """Figures that are measured together."""

    label: str
    module: ModuleType
    measure: Measure
    quick: Measure | None = None
    """The same in less time; None: it is no part of the quick set."""


def _parts(arguments: argparse.Namespace) -> dict[str, Part]:
    faults, seconds = arguments.faults, arguments.agent_seconds
    cordon = Effort(max(1, faults // FAULTS_PER_ROUND), 600.0)
    return {
        "cordon": Part(
            f"faults under the telemetry of {AGENTS} agents",
            cordon_latency,
            lambda: cordon_latency.measure(cordon, min(faults, FAULTS_PER_ROUND), AGENTS),
            lambda: cordon_latency.measure(Effort(3, 40.0), QUICK_FAULTS, AGENTS),
        ),
        "wave": Part(
            "500 nodes that join, and 200 and 600 that fail at once",
            fault_wave,
            fault_wave.measure,
            lambda: fault_wave.measure(Effort(3, 70.0)),
        ),
        "ingest": Part(
            "telemetry into the metrics service",
            telemetry_ingest,
            telemetry_ingest.measure,
            lambda: telemetry_ingest.measure(Effort(3, 15.0)),
        ),
        "list": Part(
            "`navarch list`",
            node_listing,
            node_listing.measure,
            lambda: node_listing.measure_fleet("medium", ("bus",), Effort(9, 15.0)),
        ),
        "commands": Part(
            "the start of commands",
            command_start,
            command_start.measure,
            lambda: command_start.measure(Effort(5, 20.0)),
        ),
        "levels": Part(
            "telemetry into the health-monitor", level_evaluation, level_evaluation.measure
        ),
        "events": Part("`navarch events`", event_listing, event_listing.measure),
        "large-wave": Part(
            "1,000 and 5,000 nodes that fail at once", fault_wave, fault_wave.measure_large
        ),
        "scheduler": Part(
            f"{scheduler_cordon.AT_ONCE} drains at once at the scheduler",
            scheduler_cordon,
            scheduler_cordon.measure,
        ),
        "agent": Part(
            f"three agents for {seconds:g} s", agent_cost, lambda: agent_cost.measure(seconds)
        ),
        "security": Part(
            "the bus with accounts, TLS and limits, and open", security_cost, security_cost.measure
        ),
        "floods": Part(
            "faults while nats-server or the gateway is flooded",
            flooded_cordon,
            lambda: flooded_cordon.measure(Effort(3, 300.0), FLOODED_FAULTS),
        ),
        "streams": Part(
            f"{event_streams.STREAMS} event streams of a gateway",
            event_streams,
            event_streams.measure,
        ),
        "simulation": Part(
            "stress runs of 1,000 and of 5,000 nodes", stress_runs, stress_runs.measure
        ),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--faults", type=int, default=120, help="kernel log lines (default: 120)")
    parser.add_argument(
        "--agent-seconds", type=float, default=45, help="of measuring agents (default: 45)"
    )
    parser.add_argument("--output", type=Path, help="where to write (default: latest.json)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="measure the hot paths for three minutes; exit with 1 "
        "if a ratio is a quarter above that of the worst committed round, twice",
    )
    parser.add_argument(
        "--only", action="append", help="measure this part; the file keeps the other figures"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.only or ()) - set(_parts(arguments)):
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(_parts(arguments))}")
    return arguments


async def _measure(part: Part, measure: Measure) -> Measured:
    start, floor_before = datetime.now(UTC), floor()
    figures = await measure()
    about = {
        "date": start.isoformat(timespec="seconds"),
        "commit": _commit(),
        "seconds": round((datetime.now(UTC) - start).total_seconds()),
        "setup": " ".join((part.module.__doc__ or "").split()),
        "deviations": getattr(part.module, "DEVIATIONS", {}),
        "machine": machine(),
        "machine_floor": {"before": floor_before, "after": floor()},
    }
    return Measured(figures, about)


def _measured(console: Console, part: Part, *, quick: bool) -> Measured:
    """Measure one part, shortly with `quick`."""
    console.print(f"Measuring {part.label} …")
    found = uvloop.run(_measure(part, part.quick if quick and part.quick else part.measure))
    for setting, deviation in found.about["deviations"].items():
        console.print(f"  not as shipped: {setting}: {deviation}")
    return found


def _table(figures: dict[str, Any], committed: dict[str, Any]) -> Table:
    """Return every figure beside its floor and the committed ratio."""
    columns = ("Figure", "Measured", "Unit", "Floor", "Ratio", "Committed", "Aim", "Verdict")
    table = Table(*columns)
    for column in (table.columns[1], *table.columns[3:6]):
        column.justify = "right"
    verdicts = {each.name: each for each in comparison.verdicts(figures, committed)}
    for row in ROWS:
        if row.name not in figures:
            continue
        cells = ["", "", "", row.aim, ""]
        if verdict := verdicts.get(row.name):
            before = "" if verdict.committed is None else f"{verdict.committed:.2f}"
            cells = [f"{verdict.floor:,}", f"{verdict.ratio:.2f}", before, row.aim, verdict.text]
        table.add_row(row.label, f"{figures[row.name]:,}", row.unit, *cells)
    for hop, took in figures.get("hops_ms", {}).items():
        table.add_row(f"  {hop}", f"{took['p50']} / {took['p99']}", "ms, p50 / p99")
    return table


def _defects(found: Measured, name: str, committed: dict[str, Any]) -> list[str]:
    """Name the floors of a part that have grown, which nothing of the product is in."""
    before = committed.get("parts", {}).get(name)
    if before is None:
        return []
    speeds = comparison.loop_ms(found.about), comparison.loop_ms(before)
    return comparison.floor_defects(found.figures, speeds[0], committed, speeds[1])


def _confirmed(
    console: Console, parts: dict[str, Part], measured: dict[str, Measured], committed: Any
) -> list[str]:
    """Measure each part with a worse ratio once more alone; name the figures worse in both."""
    failed: list[str] = []
    for name, found in measured.items():
        if first := comparison.worse(found.figures, committed):
            console.print(f"Worse: {', '.join(first)}. Once more alone:")
            again = _measured(console, parts[name], quick=True)
            console.print(_table(again.figures, committed))
            failed += comparison.confirmed(first, again.figures, committed)
    return failed


def _write(output: Path, measured: dict[str, Measured], committed: Any, *, keep: bool) -> None:
    """Write the figures; the committed ones get a line in the history of their ratios."""
    written: dict[str, Any] = json.loads(output.read_bytes()) if keep and output.exists() else {}
    written.setdefault("parts", {})
    written["everything_on"] = "one machine: nats-server, services, agents, receiver, load"
    lines = []
    for name, (figures, about) in measured.items():
        written |= figures
        written["parts"][name] = about
        at = about["commit"], about["date"]
        lines.append(comparison.history_line(name, figures, committed, *at))
    data = msgspec.json.encode(written)
    output.write_bytes(msgspec.json.format(data, indent=2) + b"\n")
    if output == LATEST:
        with HISTORY.open("a", encoding="utf-8") as history:
            history.writelines(f"{json.dumps(each)}\n" for each in lines if each)


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def main() -> int:
    """Measure the chosen parts; return 1 if a ratio of the quick set is worse twice."""
    arguments = _arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    committed = json.loads(LATEST.read_bytes()) if LATEST.exists() else {}
    parts = {
        name: part
        for name, part in _parts(arguments).items()
        if (name in arguments.only if arguments.only else part.quick or not arguments.quick)
    }
    measured = {
        name: _measured(console, part, quick=arguments.quick) for name, part in parts.items()
    }
    figures = {name: each for found in measured.values() for name, each in found.figures.items()}
    console.print(_table(figures, committed))
    for name, found in measured.items():
        for defect in _defects(found, name, committed):
            console.print(f"A defect of the benchmark: {defect}, at the machine's speed then.")
    failed = _confirmed(console, parts, measured, committed) if arguments.quick else []
    if output := arguments.output or (None if arguments.quick else LATEST):
        _write(output, measured, committed, keep=bool(arguments.only))
        console.print(f"Written to {output}")
    if failed:
        console.print(
            f"Slower, twice: {', '.join(failed)}. What is slower on purpose is measured "
            "again with `python -m benchmarks --only PART`, which writes latest.json."
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
