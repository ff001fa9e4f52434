"""A stress run from its specification to its report: the one way in, for commands and tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import msgspec

from schemas.settings import Settings
from services.health_monitor.rules.policy_file import load_policy, policy_path
from services.health_monitor.rules.xid_catalogues import load_xids
from services.simulator.engine import virtual_time
from services.simulator.inputs.scenario.assertions import judge_report
from services.simulator.inputs.scenario.scenario_format import LogParams, Scenario
from services.simulator.inputs.scenario.scenario_outcome import AssertionResult
from services.simulator.inputs.scenario.scenario_validation import in_order
from services.simulator.inputs.stress import failure_schedule, report_composer, stress_fleet
from services.simulator.inputs.stress.failure_effects import judged_fatal
from services.simulator.inputs.stress.run_log import logbook
from services.simulator.inputs.stress.stress_format import FailureType, StressSpec
from services.simulator.inputs.stress.stress_run import StressRun
from services.simulator.inputs.violation_shrinker import shrink
from services.simulator.report.report_format import StressReport

SHRINK_RUNS_MAX: Final = 12
"""Of a violation: each run takes as long as the stress run, at most."""


@dataclass(frozen=True, slots=True)
class StressResult:
    """A report, and whether what the file expects holds."""

    report: StressReport
    checks: tuple[AssertionResult, ...]
    """Empty after a violation: the run ended early."""
    enough: tuple[failure_schedule.ScheduledFailure, ...] = ()
    """Failures that are enough for the violation."""

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        held = all(each.ok for each in self.checks)
        return held and not self.report.defects and self.report.violation is None


@dataclass(frozen=True, slots=True)
class StressPlan:
    """What will happen, before anything does."""

    fleet: stress_fleet.GeneratedFleet
    failures: tuple[failure_schedule.ScheduledFailure, ...]


def plan(spec: StressSpec, health_policy: str = "") -> StressPlan:
    """Draw the fleet and its failures from the specification's seed."""
    policy = load_policy(policy_path(health_policy, None))

    @cache
    def fatal(type_: FailureType, xid: int) -> bool:
        return judged_fatal(policy, type_, xid)

    seed = str(spec.seed)
    made = stress_fleet.generate(spec.fleet_gen, seed)
    return StressPlan(made, failure_schedule.draw(spec, made, seed, fatal))


def run_scenario(
    scenario: Scenario,
    *,
    only: tuple[int, ...] | None = None,
    passed: Callable[[float], None] = lambda _: None,
    heard: Callable[[float, str], None] = lambda _at, _text: None,
) -> StressResult:
    """Run a scenario's `stress` section and evaluate its assertions; shrink a violation."""
    spec = scenario.stress
    words = [
        (float(event.at), event.params.message)
        for _, event in in_order(scenario.events)
        if isinstance(event.params, LogParams)
    ]

    def run(numbers: tuple[int, ...] | None, spec: StressSpec) -> StressReport:
        return simulate(
            spec,
            name=scenario.name,
            description=scenario.description,
            base=scenario.configuration,
            only=numbers,
            says=words,
            passed=passed,
            heard=heard,
        )

    report = run(only, spec)
    if report.violation is None:
        checks = tuple(judge_report(each, report) for each in scenario.assertions)
        return StressResult(report, checks)
    failures = plan(spec, scenario.configuration.health_policy).failures
    numbers = only or tuple(each.number for each in failures if each.at <= report.violation.at)
    quiet = msgspec.structs.replace(spec, log_file="")

    def violating(fewer: tuple[int, ...]) -> StressReport | None:
        found = run(fewer, quiet)
        return found if found.violation is not None else None

    kept, smallest = shrink(numbers, violating, SHRINK_RUNS_MAX)
    enough = tuple(each for each in failures if each.number in kept)
    return StressResult(smallest or report, (), enough)


def simulate(
    spec: StressSpec,
    *,
    name: str = "stress",
    description: str = "",
    base: Settings | None = None,
    only: tuple[int, ...] | None = None,
    says: Sequence[tuple[float, str]] = (),
    passed: Callable[[float], None] = lambda _: None,
    heard: Callable[[float, str], None] = lambda _at, _text: None,
) -> StressReport:
    """Run it; `passed` gets the virtual seconds so far, `only` these failures are injected.

    `says` are the file's own words, each with its moment: they are logged, and passed to `heard`.
    Of the specification's files only the log is written here, while the run goes on.
    """
    names = {each.code: each.description for each in load_xids().codes}
    with logbook(spec.log_file) as book:
        planned = plan(spec, base.health_policy if base is not None else "")

        async def live() -> StressReport:
            on_line = book.write if book is not None else None
            failures = tuple(
                each for each in planned.failures if only is None or each.number in only
            )
            run = StressRun(spec, planned.fleet, failures, str(spec.seed), on_line, base)
            run.log_at(says, heard)
            violation = await run.run(passed)
            return report_composer.compose(
                name,
                description,
                spec,
                planned.fleet,
                run.recording,
                history=run.fleet.simulation.history.digest,
                machines=run.fleet.cloud.made,
                jobs=run.jobs,
                xid_names=names,
                defects=run.fleet.defects,
                violation=violation,
            )

        return virtual_time.run(live)
