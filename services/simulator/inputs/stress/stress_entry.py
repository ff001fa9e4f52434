"""A stress run from its specification to its report: the one way in, for commands and tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from schemas.settings import Settings
from services.health_monitor.rules.policy_file import load_policy, policy_path
from services.health_monitor.rules.xid_catalogues import load_xids
from services.simulator.engine import virtual_time
from services.simulator.inputs.stress import failure_schedule, report_composer, stress_fleet
from services.simulator.inputs.stress.failure_effects import judged_fatal
from services.simulator.inputs.stress.run_log import logbook
from services.simulator.inputs.stress.stress_format import FailureType, StressSpec
from services.simulator.inputs.stress.stress_run import StressRun
from services.simulator.report.report_format import StressReport


@dataclass(frozen=True, slots=True)
class StressPlan:
    """What will happen, before anything does."""

    fleet: stress_fleet.GeneratedFleet
    failures: tuple[failure_schedule.ScheduledFailure, ...]


def plan(spec: StressSpec, health_policy: str = "") -> StressPlan:
    """Make the fleet and all that befalls it, from the specification's seed."""
    policy = load_policy(policy_path(health_policy, None))

    @cache
    def fatal(type_: FailureType, xid: int) -> bool:
        return judged_fatal(policy, type_, xid)

    seed = str(spec.seed)
    made = stress_fleet.generate(spec.fleet_gen, seed)
    return StressPlan(made, failure_schedule.draw(spec, made, seed, fatal))


def simulate(
    spec: StressSpec,
    *,
    name: str = "stress",
    description: str = "",
    base: Settings | None = None,
    says: Sequence[tuple[float, str]] = (),
    passed: Callable[[float], None] = lambda _: None,
    heard: Callable[[float, str], None] = lambda _at, _text: None,
) -> StressReport:
    """Live through it; `passed` is told the virtual seconds that have passed.

    `says` are the file's own words, each with its moment: the log has them, and `heard` is told.
    Of the specification's files only the log is written here, while the run goes on.
    """
    names = {each.code: each.description for each in load_xids().codes}
    with logbook(spec.log_file) as book:
        planned = plan(spec, base.health_policy if base is not None else "")

        async def live() -> StressReport:
            told = book.told if book is not None else None
            run = StressRun(spec, planned.fleet, planned.failures, str(spec.seed), told, base)
            run.says(says, heard)
            await run.run(passed)
            return report_composer.compose(
                name,
                description,
                spec,
                planned.fleet,
                run.recording,
                history=run.simulation.history.digest,
                machines=run.made,
                jobs=run.jobs,
                xid_names=names,
                defects=run.defects,
            )

        return virtual_time.run(live)
