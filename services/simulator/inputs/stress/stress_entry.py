"""A stress run from its specification to its report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from schemas.settings import Settings
from services.health_monitor.rules.health_policy import Rule
from services.health_monitor.rules.policy_file import load_policy, policy_path
from services.runtime.logs import silenced
from services.settings.xid_catalogues import load_xids
from services.simulator.engine import virtual_time
from services.simulator.engine.run_history import LogSink, run_log
from services.simulator.inputs.scenario.assertions import evaluate_report
from services.simulator.inputs.scenario.original_dialect import COMPAT
from services.simulator.inputs.scenario.scenario_format import LogParams, Scenario
from services.simulator.inputs.scenario.scenario_outcome import AssertionResult
from services.simulator.inputs.scenario.scenario_validation import by_time
from services.simulator.inputs.stress import failure_schedule, report_composer, stress_fleet
from services.simulator.inputs.stress.failure_effects import is_fatal
from services.simulator.inputs.stress.report_composer import limit_notes, policy_notes
from services.simulator.inputs.stress.stress_format import FailureType, StressSpec
from services.simulator.inputs.stress.stress_run import StressRun
from services.simulator.inputs.violation_shrinker import shrink
from services.simulator.report.report_format import StressReport

SHRINK_RUNS_MAX: Final = 12
"""Each run takes at most as long as the stress run."""


@dataclass(frozen=True, slots=True)
class StressResult:
    """Holds a report, and the results of the file's assertions."""

    report: StressReport
    checks: tuple[AssertionResult, ...]
    """Empty after a violation, which ends the run."""
    enough: tuple[failure_schedule.ScheduledFailure, ...] = ()
    """The failures that still lead to the violation."""
    only_logged: bool = False
    """Assertions that do not hold are reported and fail nothing, as in the original."""

    @property
    def ok(self) -> bool:
        """Return whether everything holds."""
        held = self.only_logged or all(each.ok for each in self.checks)
        return held and not self.report.defects and self.report.violation is None


@dataclass(frozen=True, slots=True)
class StressPlan:
    """The fleet and its failures, drawn before the run."""

    fleet: stress_fleet.GeneratedFleet
    failures: tuple[failure_schedule.ScheduledFailure, ...]
    begins: float
    """When failures, events and the duration begin to count, in seconds from the first node on."""


def plan(spec: StressSpec, health_policy: str = "") -> StressPlan:
    """Draw the fleet and its failures from the specification's seed."""
    policy = load_policy(policy_path(health_policy, None))

    @cache
    def fatal(type_: FailureType, xid: int) -> bool:
        return is_fatal(policy, type_, xid, spec.chaos.hot_celsius)

    seed = str(spec.seed)
    made = stress_fleet.generate(spec.fleet_gen, seed)
    after = spec.clock == "after_startup"
    begins = max(each.up_at for each in made.slots) if after else 0.0
    return StressPlan(made, failure_schedule.draw(spec, made, seed, fatal, begins), begins)


def _text_of(rule: Rule) -> str:
    """What a rule says, and what follows from it."""
    what = rule.description or rule.condition
    return f"{what} ({rule.result}{'' if rule.action == 'none' else f', {rule.action}'})"


def run_scenario(
    scenario: Scenario,
    *,
    only: tuple[int, ...] | None = None,
    on_sample: Callable[[float], None] = lambda _: None,
    on_word: Callable[[float, str], None] = lambda _at, _text: None,
    log: LogSink | None = None,
) -> StressResult:
    """Run a scenario's `stress` section and evaluate its assertions; shrink a violation."""
    spec, base = scenario.stress, scenario.configuration
    words = [
        (float(event.at), event.params.message)
        for _, event in by_time(scenario.events)
        if isinstance(event.params, LogParams)
    ]
    run = partial(
        simulate,
        name=scenario.name,
        description=scenario.description,
        base=base,
        words=words,
        on_sample=on_sample,
        on_word=on_word,
        notes=scenario.notes,
        is_original=scenario.is_original,
        is_limited=scenario.compat != COMPAT,
    )
    report = run(spec, only=only, log=log)
    if report.violation is None:
        checks = tuple(evaluate_report(each, report) for each in scenario.assertions)
        return StressResult(report, checks, only_logged=scenario.is_original)
    failures = plan(spec, base.health_policy).failures
    numbers = only or tuple(each.number for each in failures if each.at <= report.violation.at)

    def find_violation(fewer: tuple[int, ...]) -> StressReport | None:
        found = run(spec, only=fewer)
        return found if found.violation is not None else None

    kept, smallest = shrink(numbers, find_violation, SHRINK_RUNS_MAX)
    enough = tuple(each for each in failures if each.number in kept)
    return StressResult(smallest or report, (), enough)


def simulate(
    spec: StressSpec,
    *,
    name: str = "stress",
    description: str = "",
    base: Settings | None = None,
    only: tuple[int, ...] | None = None,
    words: Sequence[tuple[float, str]] = (),
    on_sample: Callable[[float], None] = lambda _: None,
    on_word: Callable[[float, str], None] = lambda _at, _text: None,
    log: LogSink | None = None,
    notes: Sequence[str] = (),
    is_original: bool = False,
    is_limited: bool = True,
) -> StressReport:
    """Run it; `on_sample` gets the virtual seconds so far, `only` these failures are injected.

    `words` are the file's own, each with its moment: they are logged, and passed to `on_word`.
    `log` gets every line while the run goes on; none of the specification's files is written here.
    `notes` are the report's first; `is_original`: the file's words are the original's;
    `is_limited`: by the budget and the breaker.
    """
    chosen = base.health_policy if base is not None else ""
    with silenced():
        policy = load_policy(policy_path(chosen, None))
        planned = plan(spec, chosen)
    failures = [each for each in planned.failures if only is None or each.number in only]
    with run_log(log) as on_line:

        async def live() -> StressReport:
            run = StressRun(
                spec, planned.fleet, failures, on_line, base, words, on_word, planned.begins
            )
            violation = await run.run(on_sample)
            repairs = spec.chaos.recovery.replace_fatal
            budgets = list(run.recording.budgets.values()) if repairs else []
            return report_composer.compose(
                name,
                description,
                spec,
                planned.fleet,
                run.recording,
                begins=planned.begins,
                notes=[
                    *notes,
                    *(policy_notes(run.recording.done) if is_original else ()),
                    *(limit_notes(budgets, is_original=is_original) if is_limited else ()),
                ],
                history=run.fleet.simulation.history.digest,
                machines=run.fleet.cloud.made,
                jobs=run.jobs,
                rule_texts={each.name: _text_of(each) for each in policy.rules},
                places=run.machines.places,
                xid_names={each.code: each.description for each in load_xids().codes},
                defects=run.fleet.defects,
                violation=violation,
            )

        return virtual_time.run(live)
