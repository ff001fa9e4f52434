"""Prints what `navarch simulator run` shows of a stress scenario: progress, reports, figures."""

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import typer

from services.cli import console
from services.cli.commands.simulator.run_options import RunOptions
from services.cli.text.table_layout import columns
from services.operator_text.safe_text import escape_line
from services.simulator.engine.simulated_fleet import Violation
from services.simulator.inputs.scenario.scenario_format import Scenario
from services.simulator.inputs.stress import stress_entry, stress_validation
from services.simulator.inputs.stress.stress_format import StressSpec
from services.simulator.report import html_report, report_format
from services.simulator.report.report_format import StressReport
from services.simulator.report.run_directory import PAGE, REPORT
from services.simulator.report.svg_charts import clock

SEED_MAX: Final = 2**31


def run(scenario: Scenario, options: RunOptions, documents: list[dict[str, Any]]) -> bool:
    """Run it, write its reports and print its figures; False: an assertion or invariant fails."""
    spec, output, quiet = _seeded(scenario, options.seed), options.output, options.quiet
    _check_writable(spec.report_file, spec.html_report_file, spec.log_file)
    began = time.monotonic()
    directory = options.directory(scenario)
    whole = [(Path(spec.log_file), logging.DEBUG)] if spec.log_file else []
    shows_words = not output.is_data and not quiet
    with (
        options.logging(directory, *whole) as log,
        _progress(spec, shows_words=shows_words, has_bar=not options.shows_lines) as progress,
    ):
        on_sample, on_word = progress
        result = stress_entry.run_scenario(
            msgspec.structs.replace(scenario, stress=spec),
            only=options.only,
            on_sample=on_sample,
            on_word=on_word,
            log=log,
        )
    found = result.report
    wall = time.monotonic() - began
    directory.write(REPORT, report := report_format.encode(found))
    directory.write(PAGE, page := html_report.render(found).encode())
    for path, data in ((spec.report_file, report), (spec.html_report_file, page)):
        if path:
            Path(path).write_bytes(data)
    if output.is_data:
        documents.append({"file": scenario.file, "ok": result.ok, **msgspec.to_builtins(found)})
        return result.ok
    if not quiet:
        console.write(_figures(found))
        written = {"log": spec.log_file, "report": spec.report_file, "page": spec.html_report_file}
        for what, path in written.items():
            if path:
                console.write(f"{what:<14}{path}")
        options.show_directory(directory)
    for note in found.notes:
        console.write(f"NOTE: {note}")
    for line in _failures(result, scenario.file, options.again):
        console.write(line)
    verdict = "passed" if result.ok else "FAILED"
    console.write(
        f"{found.name}: {verdict}: {found.summary.nodes_wanted:,} nodes, "
        f"simulated {found.seconds:.0f} s in {wall:.1f} s "
        f"(seed {found.seed}, history {found.history[:16]})"
    )
    return result.ok


def _seeded(scenario: Scenario, seed: str) -> StressSpec:
    """The section with the seed that counts."""
    spec: StressSpec = scenario.stress
    if not seed and scenario.is_original and not spec.seed:
        seed = str(secrets.randbelow(SEED_MAX) + 1)  # as its simulator draws one
    if not seed:
        return spec
    spec = msgspec.structs.replace(spec, seed=_number(seed))
    for place, text in stress_validation.problems(spec):
        key = ".".join(map(str, place))
        raise typer.BadParameter(f"{scenario.file}: with this seed stress.{key}: {text}")
    return spec


def _figures(found: StressReport) -> str:
    summary, repair = found.summary, found.repair_seconds
    most = ", ".join(f"{count} {name}" for name, count in found.failures.by_type.items())
    repaired = (
        f"{summary.repairs:,}, {summary.repairs_open:,} under way, "
        f"{summary.repairs_failed:,} undone; {summary.machines_made:,} machines made"
    )
    up = "once they were up" if summary.up_at is not None else "which never were up (95 %)"
    rows = [
        ("in service", f"{summary.availability:.2%} of the wanted nodes' time, {up}"),
        ("healthy", f"{summary.nodes_at_end:,} at the end, {summary.healthy_least:,} at the least"),
        ("failures", f"{summary.failures:,}: {most or 'none'}"),
        ("passed", f"{summary.recoveries:,} by themselves"),
        ("repaired", repaired),
        ("repair time", _spread(repair)),
        *_demand_rows(found),
    ]
    opened = sum(sum(each.breaker_opened.values()) for each in found.budget)
    if opened:
        spent = sum(each.breaker_open_seconds for each in found.budget)
        times = "once" if opened == 1 else f"{opened} times"
        rows.append(("breakers", f"opened {times}, {spent:.0f} s together"))
    return columns(("", ""), rows, colour=False).partition("\n")[2]


def _spread(found: report_format.Spread) -> str:
    return f"p50 {found.p50:.0f} s, p99 {found.p99:.0f} s, longest {found.max:.0f} s"


def _demand_rows(found: StressReport) -> Iterator[tuple[str, str]]:
    """How autoscalers changed the pools' sizes, and how long the jobs waited."""
    if found.scaling:
        ups, downs = (sum(getattr(each, key) for each in found.scaling) for key in ("ups", "downs"))
        most, pools = found.summary.nodes_wanted, len(found.scaling)
        among = f" in {pools} pools" if pools > 1 else ""
        yield "scaled", f"{ups} times up and {downs} down{among}; {most:,} nodes at the most"
    if (demand := found.demand) is not None:
        left = f"; {demand.waiting:,} wait at the end" if demand.waiting else ""
        came = f"{demand.arrived:,} came, {demand.finished:,} have ended"
        yield "jobs", f"{came}, {demand.interrupted:,} started again{left}"
        yield "jobs waited", _spread(demand.wait_seconds)
        yield "idle", f"{demand.idle_share:.1%} of the time that nodes were in service"


@contextmanager
def _progress(
    spec: StressSpec, *, shows_words: bool, has_bar: bool
) -> Iterator[tuple[Callable[[float], None], Callable[[float, str], None]]]:
    """Show a bar on a terminal; on stderr, so that stdout holds the result alone."""
    if not has_bar or not sys.stderr.isatty():

        def write_word(at: float, text: str) -> None:
            if shows_words:
                console.write(f"{clock(at):>9} {text}")

        yield lambda _: None, write_word
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    columns = (
        TextColumn("simulated {task.fields[clock]}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %, real time"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=float(spec.duration), clock=clock(0.0))

        def on_sample(now: float) -> None:
            progress.update(task, completed=now, clock=clock(now), refresh=True)

        def on_word(at: float, text: str) -> None:
            if shows_words:
                progress.console.print(Text(escape_line(f"{clock(at):>9} {text}")))

        yield on_sample, on_word


def _failures(result: stress_entry.StressResult, file: str, again: str) -> Iterator[str]:
    """Assertions that do not hold, services that ended, and the violation."""
    found = result.report
    failed = "not met, which only logs, as in the original" if result.only_logged else "FAILED"
    yield from (
        f"{failed}: {each.text}; found: {each.found}" for each in result.checks if not each.ok
    )
    yield from (f"FAILED: {text}" for text in found.defects)
    if found.violation is not None:
        numbers = ",".join(str(each.number) for each in result.enough) or "0"
        replay = f"navarch simulator run {file} --seed {found.seed} --only {numbers}{again}"
        yield from violation_lines(found.violation, str(found.seed), replay)


def violation_lines(violation: Violation, seed: str, replay: str) -> Iterator[str]:
    """The invariant that did not hold, when, how to see it again, and its history."""
    yield f"FAILED at {clock(violation.at)}: an invariant is violated: {violation.text}"
    yield f"  seed {seed}; replay: {replay}"
    yield "history, as far as it is about this:"
    yield from (f"  {line}" for line in violation.history)


def _number(seed: str) -> int:
    try:
        return int(seed)
    except ValueError:
        raise typer.BadParameter(f"{seed!r}: the seed of a stress run is a number") from None


def _check_writable(*paths: str) -> None:
    """Refuse now, and not after the run, a report that cannot be written."""
    for path in map(Path, filter(None, paths)):
        folder = path.resolve().parent
        if not folder.is_dir():
            raise typer.BadParameter(f"{path}: there is no folder {folder}")
        if path.is_dir():
            raise typer.BadParameter(f"{path}: is a folder; name a file in it")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise typer.BadParameter(f"{path}: cannot be written here")
