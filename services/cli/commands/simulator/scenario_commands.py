"""`navarch simulator run` and `validate`: scenarios from files, for people and for programs."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from schemas.duration import format_duration
from services.cli import console
from services.cli.commands.simulator import stress_output
from services.cli.console import Format
from services.cli.text import tables
from services.operator_text.event_text import describe

if TYPE_CHECKING:
    from datetime import datetime

    from services.bus.port import Bus
    from services.simulator.inputs.scenario.scenario_format import Scenario
    from services.simulator.inputs.scenario.scenario_outcome import AssertionResult, ScenarioResult

FOUND_CHARS_MAX: Final = 80


def run(
    files: Sequence[Path],
    seed: str,
    output: Format,
    *,
    only: tuple[int, ...] | None = None,
    quiet: bool,
) -> int:
    """Play every file; the exit code is 1 where something does not hold."""
    scenarios = [_read(file) for file in files]
    failed = 0
    documents: list[dict[str, Any]] = []
    for scenario in scenarios:
        if scenario.stress is not None:
            failed += not stress_output.run(
                scenario, seed, output, documents, only=only, quiet=quiet
            )
            continue
        began = time.monotonic()
        outcome = _play(scenario, seed)
        wall = time.monotonic() - began
        failed += not outcome.ok
        if output is Format.JSON:
            documents.append({"file": scenario.file, **as_json(outcome)})
            continue
        for line in lines(scenario, outcome, colour=console.colour(), quiet=quiet):
            console.write(line)
        if outcome.violation is not None:
            replay = f"navarch simulator run {scenario.file} --seed {outcome.seed}"
            for line in stress_output.violation_lines(outcome.violation, outcome.seed, replay):
                console.write(line)
        console.write(_verdict(outcome, wall, colour=console.colour()))
    if output is Format.JSON:
        console.write_json(documents[0] if len(documents) == 1 else documents)
    elif len(scenarios) > 1:
        console.write(f"scenarios={len(scenarios)} failed={failed}")
    return 1 if failed else 0


def validate(files: Sequence[Path]) -> int:
    """Read every file, and say all that is wrong; the exit code is 1 where something is."""
    from services.simulator.inputs.scenario.scenario_file import ScenarioError, read_file  # noqa: PLC0415

    wrong = 0
    for file in files:
        try:
            scenario = read_file(file)
        except ScenarioError as error:
            wrong += 1
            for problem in error.problems:
                console.write(problem)
            continue
        console.write(f"{file}: {scenario.name} is in order: {_what(scenario)}")
    return 1 if wrong else 0


def _what(scenario: "Scenario") -> str:
    """What a file holds."""
    if scenario.stress is None:
        return (
            f"{len(scenario.fleet)} nodes, {len(scenario.events)} events, "
            f"{len(scenario.assertions)} assertions"
        )
    fleet, lasts = scenario.stress.fleet_gen, format_duration(scenario.stress.duration)
    return f"a stress run of {fleet.total_nodes:,} nodes for {lasts}"


def _read(file: Path) -> "Scenario":
    from services.simulator.inputs.scenario.scenario_file import read_file  # noqa: PLC0415

    return read_file(file)


def _play(scenario: "Scenario", seed: str) -> "ScenarioResult":
    from services.simulator.inputs.scenario.scenario_runner import run as play  # noqa: PLC0415

    return play(scenario, seed, why)


async def why(bus: "Bus", name: str, at: "datetime") -> str:
    """What `navarch why` answers."""
    from services.cli import stored_history  # noqa: PLC0415
    from services.cli.bus_client import FleetClient  # noqa: PLC0415
    from services.cli.text.why_text import why_page  # noqa: PLC0415

    return why_page(await stored_history.why(FleetClient(bus), name, at))


# --- words ---------------------------------------------------------------------------------------


def as_json(outcome: "ScenarioResult") -> dict[str, Any]:
    """An outcome as one document."""
    return {
        "name": outcome.name,
        "ok": outcome.ok,
        "seed": outcome.seed,
        "simulated_seconds": outcome.seconds,
        "history": outcome.digest,
        "steps": [msgspec.to_builtins(each) for each in outcome.steps],
        "assertions": [msgspec.to_builtins(each) for each in outcome.checks],
        "nodes": [msgspec.to_builtins(each) for each in outcome.nodes],
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
    scenario: "Scenario", outcome: "ScenarioResult", *, colour: bool, quiet: bool
) -> Iterator[str]:
    """What happened when, the status of the nodes, and what does not hold."""
    if quiet:
        yield from _wrong(outcome)
        return
    yield _bold(f"{scenario.name}: {scenario.description or scenario.file}", colour=colour)
    yield from story(outcome, colour=colour)
    yield ""
    rows = [(each.node, each.pool, each.status, each.health, each.reason) for each in outcome.nodes]
    yield tables.columns(("node", "pool", "status", "health", "reason"), rows, colour=colour)
    yield ""
    marks = {True: "holds", False: "FAILS"}
    checked = [
        (marks[each.ok], _when(each) + each.text, "" if each.ok else _found(each))
        for each in outcome.checks
    ]
    if checked:
        yield tables.columns(("", "assertion", ""), checked, colour=False)
    yield from _wrong(outcome)


def story(outcome: "ScenarioResult", *, colour: bool) -> Iterator[str]:
    """Events and facts in the order of virtual time."""
    found: list[tuple[float, int, str]] = []
    for step in outcome.steps:
        mark = "" if step.ok else "   FAILS"
        more = f": {step.detail}" if step.detail else ""
        found.append((step.at, 0, _bold(f"▶ {step.text}{more}{mark}", colour=colour)))
        if step.seconds >= 1 and step.text.startswith("wait"):
            text = f"▶ {step.text.split(' ')[0]} took {step.seconds:.1f} s"
            found.append((step.at + step.seconds, 2, _bold(text, colour=colour)))
    for at, message in outcome.story:
        event = describe(message)
        paint = tables.COLOURS[event.tone] if colour else ""
        end = tables.RESET if paint else ""
        line = f"  {event.name:<24} {paint}{event.title:<14}{end} {event.summary}"
        found.append((at, 1, line.rstrip()))
    for at, _, text in sorted(found, key=lambda each: each[:2]):
        yield f"{clock(at):>9} {text}"


def _wrong(outcome: "ScenarioResult") -> Iterator[str]:
    yield from (f"FAILED at {clock(e.at)}: {e.text}: {e.detail}" for e in outcome.steps if not e.ok)
    for each in (each for each in outcome.checks if not each.ok):
        yield f"FAILED{_when(each, ' at ')}: {each.text}; found: {each.found}"
    yield from (f"FAILED: {each}" for each in outcome.defects)


def _found(each: "AssertionResult") -> str:
    """What was found instead, where it fits on a line; it is shown whole below."""
    return f"found: {each.found}" if len(each.found) <= FOUND_CHARS_MAX else "found: see below"


def _when(each: "AssertionResult", before: str = "") -> str:
    """When an assertion was looked at, where that was not the end."""
    if each.at is None:
        return ""
    return f"{before}{clock(each.at)}" + ("" if before else " ")


def clock(seconds: float) -> str:
    """Virtual time since the beginning: `1:02:03.4`, or `2:03.4`."""
    tenths = round(seconds * 10)
    hours, rest = divmod(tenths, 36_000)
    minutes, rest = divmod(rest, 600)
    front = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return f"{front}:{rest // 10:02d}.{rest % 10}"


def _verdict(outcome: "ScenarioResult", wall: float, *, colour: bool) -> str:
    word = "passed" if outcome.ok else "FAILED"
    return _bold(
        f"{outcome.name}: {word}: {len(outcome.checks)} assertions, "
        f"simulated {clock(outcome.seconds)}, in {wall:.1f} s (seed {outcome.seed})",
        colour=colour,
    )


def _bold(text: str, *, colour: bool) -> str:
    return f"{tables.BOLD}{text}{tables.RESET}" if colour else text
