"""Implements `navarch simulator run` and `validate`: scenarios from files."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from schemas.duration import format_duration
from schemas.messages import Message
from services.bus.port import Bus
from services.cli import console
from services.cli.commands.simulator import stress_output
from services.cli.commands.simulator.run_options import RunOptions
from services.cli.text.styles import BOLD, COLOURS, RESET
from services.cli.text.table_layout import columns
from services.fleet_client import explanation, why_text
from services.fleet_client.fleet_client import FleetClient
from services.operator_text.event_text import describe
from services.simulator.inputs.scenario import scenario_runner
from services.simulator.inputs.scenario.scenario_file import ScenarioError, read_file
from services.simulator.inputs.scenario.scenario_format import Scenario
from services.simulator.inputs.scenario.scenario_outcome import (
    AssertionResult,
    PlayedEvent,
    ScenarioResult,
)
from services.simulator.report.html_report import render_scenario
from services.simulator.report.run_directory import PAGE, REPORT

FOUND_CHARS_MAX: Final = 80
NODE_COLUMNS: Final = ("node", "pool", "status", "health", "reason")


def run(files: Sequence[Path], options: RunOptions) -> int:
    """Run every file; the exit code is 1 where an assertion or invariant fails."""
    scenarios = [read_file(file, options.compat) for file in files]
    output, quiet = options.output, options.quiet
    failed = 0
    documents: list[dict[str, Any]] = []
    for scenario in scenarios:
        if scenario.stress is not None:
            failed += not stress_output.run(scenario, options, documents)
            continue
        began = time.monotonic()
        directory = options.directory(scenario)
        with options.logging(directory) as log:
            outcome = scenario_runner.run(scenario, options.seed, why, log)
        document = as_json(outcome)
        directory.write(REPORT, msgspec.json.format(msgspec.json.encode(document)))
        page = render_scenario(document, scenario.description, scenario.notes)
        directory.write(PAGE, page.encode())
        wall = time.monotonic() - began
        failed += not outcome.ok
        if output.is_data:
            documents.append({"file": scenario.file, **document})
            continue
        for line in lines(scenario, outcome, colour=console.colour(), quiet=quiet):
            console.write(line)
        if outcome.violation is not None:
            replay = f"navarch simulator run {scenario.file} --seed {outcome.seed}{options.again}"
            for line in stress_output.violation_lines(outcome.violation, outcome.seed, replay):
                console.write(line)
        if not quiet:
            options.show_directory(directory)
            for note in scenario.notes:
                console.write(f"NOTE: {note}")
        verdict = "passed" if outcome.ok else "FAILED"
        text = (
            f"{outcome.name}: {verdict}: {len(outcome.checks)} assertions, "
            f"simulated {clock(outcome.seconds)}, in {wall:.1f} s (seed {outcome.seed})"
        )
        console.write(_bold(text, colour=console.colour()))
    if output.is_data:
        console.write_data(output, documents[0] if len(documents) == 1 else documents)
    elif len(scenarios) > 1:
        console.write(f"scenarios={len(scenarios)} failed={failed}")
    return 1 if failed else 0


def validate(files: Sequence[Path]) -> int:
    """Read every file and report all problems; the exit code is 1 where there is one."""
    wrong = 0
    for file in files:
        try:
            scenario = read_file(file)
        except ScenarioError as error:
            wrong += 1
            console.write(str(error))
            continue
        console.write(f"{file}: {scenario.name} is in order: {_contents(scenario)}")
    return 1 if wrong else 0


def _contents(scenario: Scenario) -> str:
    if scenario.stress is None:
        return (
            f"{len(scenario.fleet)} nodes, {len(scenario.events)} events, "
            f"{len(scenario.assertions)} assertions"
        )
    fleet, lasts = scenario.stress.fleet_gen, format_duration(scenario.stress.duration)
    return f"a stress run of {fleet.total_nodes:,} nodes for {lasts}"


async def why(bus: Bus, name: str, at: datetime) -> str:
    """Answer as `navarch why` does."""
    return why_text.why_page(await explanation.why(FleetClient(bus), name, at))


def as_json(outcome: ScenarioResult) -> dict[str, Any]:
    """Return an outcome as one document."""
    return {
        "name": outcome.name,
        "ok": outcome.ok,
        "seed": outcome.seed,
        "simulated_seconds": outcome.seconds,
        "history": outcome.digest,
        "steps": msgspec.to_builtins(outcome.steps),
        "assertions": msgspec.to_builtins(outcome.checks),
        "nodes": msgspec.to_builtins(outcome.nodes),
        "defects": list(outcome.defects),
        "violation": msgspec.to_builtins(outcome.violation),
        "story": [
            {
                "at": round(at, 3),
                "subject": text.subject,
                "title": text.title,
                "detail": text.summary,
            }
            for at, message in outcome.story
            for text in (describe(message),)
        ],
    }


def lines(
    scenario: Scenario, outcome: ScenarioResult, *, colour: bool, quiet: bool
) -> Iterator[str]:
    """Yield what happened when, the status of the nodes, and which assertions fail."""
    if not quiet:
        yield _bold(f"{scenario.name}: {scenario.description or scenario.file}", colour=colour)
        yield from story(outcome.steps, outcome.story, colour=colour)
        yield ""
        yield columns(NODE_COLUMNS, map(astuple, outcome.nodes), colour=colour)
        yield ""
        checked = [_assertion_row(each) for each in outcome.checks]
        if checked:
            yield columns(("", "assertion", ""), checked, colour=False)
    yield from (f"FAILED at {clock(e.at)}: {e.text}: {e.detail}" for e in outcome.steps if not e.ok)
    for each in outcome.checks:
        if not each.ok:
            at = "" if each.at is None else f" at {clock(each.at)}"
            yield f"FAILED{at}: {each.text}; found: {each.found}"
    yield from (f"FAILED: {each}" for each in outcome.defects)


def _assertion_row(each: AssertionResult) -> tuple[str, str, str]:
    text = each.text if each.at is None else f"{clock(each.at)} {each.text}"
    if each.ok:
        return "holds", text, ""
    # The failures below the table show the long ones whole.
    found = each.found if len(each.found) <= FOUND_CHARS_MAX else "see below"
    return "FAILS", text, f"found: {found}"


def story(
    steps: Iterable[PlayedEvent], facts: Iterable[tuple[float, Message]], *, colour: bool
) -> Iterator[str]:
    """Yield events and facts in the order of virtual time."""
    found: list[tuple[float, int, str]] = []
    for step in steps:
        mark = "" if step.ok else "   FAILS"
        more = f": {step.detail}" if step.detail else ""
        found.append((step.at, 0, _bold(f"▶ {step.text}{more}{mark}", colour=colour)))
        if step.seconds >= 1 and step.text.startswith("wait"):
            text = f"▶ {step.text.split(' ')[0]} took {step.seconds:.1f} s"
            found.append((step.at + step.seconds, 2, _bold(text, colour=colour)))
    for at, message in facts:
        event = describe(message)
        paint = COLOURS[event.tone] if colour else ""
        end = RESET if paint else ""
        line = f"  {event.name:<24} {paint}{event.title:<14}{end} {event.summary}"
        found.append((at, 1, line.rstrip()))
    for at, _, text in sorted(found, key=lambda each: each[:2]):
        yield f"{clock(at):>9} {text}"


def clock(seconds: float) -> str:
    """Return the virtual time since the beginning: `1:02:03.4`, or `2:03.4`."""
    tenths = round(seconds * 10)
    hours, rest = divmod(tenths, 36_000)
    minutes, rest = divmod(rest, 600)
    front = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return f"{front}:{rest // 10:02d}.{rest % 10}"


def _bold(text: str, *, colour: bool) -> str:
    return f"{BOLD}{text}{RESET}" if colour else text
