"""Builds a stress run's report from its recorder. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from services.simulator.engine.simulated_fleet import Violation
from services.simulator.inputs.scenario.original_dialect import FATAL_XIDS
from services.simulator.inputs.stress import node_report
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.inputs.stress.job_queues import JobQueues
from services.simulator.inputs.stress.stress_fleet import GeneratedFleet, Slot
from services.simulator.inputs.stress.stress_format import StressSpec
from services.simulator.inputs.stress.stress_recorder import Repair, StressRecorder
from services.simulator.report.report_format import (
    Cascades,
    Demand,
    Failures,
    Named,
    OutageReport,
    PoolBudget,
    PoolScaling,
    Repairs,
    RepairStage,
    RepairStory,
    RunSummary,
    Spread,
    StressReport,
    TimelineMoment,
    TimelinePoint,
)

WITHOUT = "; `compat: original` runs without breaker and budget"
T = TypeVar("T", int, str)

SLOWEST_MAX: Final = 20
SECONDS_PER_HOUR: Final = 3_600
UP_SHARE: Final = 0.95
"""A fleet is up when so much of it is in service: some nodes always fail meanwhile."""


def limit_notes(budgets: Sequence[PoolBudget], *, is_original: bool) -> Iterator[str]:
    """Yield what the breaker and the budget held back."""
    remedy = WITHOUT if is_original else ""
    opened = [each for each in budgets if each.breaker_opened]
    if opened:
        times = sum(sum(each.breaker_opened.values()) for each in opened)
        seconds = sum(each.breaker_open_seconds for each in opened)
        yield (
            f"the breaker opened {_times(times)} in {_pools(len(opened))}, for {seconds:.0f} s "
            f"together, in which unhealthy nodes were not repaired{remedy}"
        )
    spent = [each for each in budgets if each.full_seconds]
    if spent:
        seconds = sum(each.full_seconds for each in spent)
        yield (
            f"the budget of {_pools(len(spent))} was spent for {seconds:.0f} s together, in which "
            f"no further node was taken out of service{remedy}"
        )


def policy_notes(done: Sequence[ScheduledFailure]) -> Iterator[str]:
    """Yield which XIDs this health policy takes for more or for less than the original does."""
    fatal = {each.xid for each in done if each.xid and each.fatal}
    mild = {each.xid for each in done if each.xid and not each.fatal}
    if more := sorted(fatal - FATAL_XIDS):
        yield f"fatal by this health policy and not in the original: XID {_numbers(more)}"
    if less := sorted(mild & FATAL_XIDS):
        yield f"fatal in the original and not by this health policy: XID {_numbers(less)}"


def _numbers(codes: Sequence[int]) -> str:
    return ", ".join(map(str, codes))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _pools(count: int) -> str:
    return "one pool" if count == 1 else f"{count} pools"


def compose(
    name: str,
    description: str,
    spec: StressSpec,
    fleet: GeneratedFleet,
    recording: StressRecorder,
    *,
    history: str,
    machines: int,
    jobs: JobQueues | None = None,
    begins: float = 0.0,
    notes: Sequence[str] = (),
    xid_names: Mapping[int, str],
    rule_texts: Mapping[str, str],
    places: Mapping[str, Slot],
    defects: Sequence[str] = (),
    violation: Violation | None = None,
) -> StressReport:
    """Build the report."""
    ended = [each for each in recording.repairs if each.outcome == "done"]
    summary = _summary(fleet, recording, machines)
    up = summary.up_at or 0.0
    nodes = node_report.nodes(recording.lives, places)
    return StressReport(
        name=name,
        description=description,
        seed=spec.seed,
        history=history,
        seconds=begins + float(spec.duration),
        notes=list(notes),
        summary=summary,
        scaling=[_scaling(each) for each in recording.scaling.values()],
        demand=_demand(jobs, fleet, recording) if jobs is not None else None,
        failures=_failures(recording, xid_names),
        cascades=cascades(recording.done),
        outages=_outages(spec, recording.done, begins),
        repairs=_repairs(recording),
        repair_seconds=spread(each.seconds for each in ended if each.seconds is not None),
        stage_seconds=_stage_seconds(ended),
        rules=[
            Named(name=rule, count=count, text=rule_texts.get(rule, ""))
            for rule, count in _by_frequency(recording.rules).items()
        ],
        verdicts=dict(sorted(recording.verdicts.items())),
        budget=[_budget(each) for each in recording.budgets.values()],
        slowest=_slowest(recording, begins + float(spec.duration)),
        timeline=recording.samples,
        regions=node_report.regions(fleet, recording.lives, places, recording.samples, up),
        nodes=nodes,
        nodes_left_out=len(recording.lives.all) - len(nodes),
        defects=list(defects),
        violation=violation,
        configuration=msgspec.to_builtins(spec, enc_hook=float, str_keys=True),
    )


def spread(seconds: Iterable[float]) -> Spread:
    """Mean and percentiles."""
    found = sorted(seconds)
    if not found:
        return Spread()

    def at(share: float) -> float:
        return _round(found[min(int(share * len(found)), len(found) - 1)])

    return Spread(
        count=len(found),
        mean=_round(sum(found) / len(found)),
        p50=at(0.5),
        p90=at(0.9),
        p99=at(0.99),
        max=_round(found[-1]),
    )


def _round(seconds: float) -> float:
    return round(seconds, 3)


def up_at(samples: Sequence[TimelinePoint], wanted: Sequence[int]) -> float | None:
    """Return when the fleet was first up; `wanted`: nodes at each sample."""
    return next(
        (
            each.at
            for each, nodes in zip(samples, wanted, strict=True)
            if each.healthy + each.degraded >= nodes * UP_SHARE and nodes
        ),
        None,
    )


def _summary(fleet: GeneratedFleet, recording: StressRecorder, machines: int) -> RunSummary:
    samples = recording.samples
    scales = bool(recording.scaling)
    wanted = [each.wanted if scales else len(fleet.slots) for each in samples]
    came_up = up_at(samples, wanted)
    steady = [each for each in samples if came_up is not None and each.at >= came_up] or samples
    wanted = wanted[len(wanted) - len(steady) :]
    serving = [
        # Nodes above the wanted size do not make up for missing ones at other times.
        min(each.healthy + each.degraded, nodes) if scales else each.healthy + each.degraded
        for each, nodes in zip(steady, wanted, strict=True)
    ]
    paid = _dollars(fleet, recording.machine_seconds)
    outcomes = Counter(each.outcome for each in recording.repairs)
    most = max((each.wanted for each in samples), default=0)
    return RunSummary(
        nodes_wanted=most if scales else len(fleet.slots),
        nodes_at_end=samples[-1].healthy if samples else 0,
        healthy_least=min((each.healthy for each in steady), default=0),
        healthy_mean=round(sum(each.healthy for each in steady) / max(len(steady), 1), 1),
        availability=round(sum(serving) / max(sum(wanted), 1), 5),
        up_at=came_up,
        failures=sum(recording.struck.values()),
        recoveries=sum(recording.recovered.values()),
        repairs=outcomes["done"],
        repairs_failed=outcomes["unwound"],
        repairs_open=outcomes[""],
        replacements=sum(e.outcome == "done" and e.kind == "replace" for e in recording.repairs),
        machines_made=machines,
        lost=recording.lost,
        returned=recording.returned,
        dollars=round(paid, 2),
        dollars_out_of_service=round(paid - _dollars(fleet, recording.serving_seconds), 2),
    )


def _scaling(scaling: PoolScaling) -> PoolScaling:
    kept = {name: _round(each) for name, each in sorted(scaling.kept_seconds.items())}
    return msgspec.structs.replace(scaling, kept_seconds=kept)


def _demand(jobs: JobQueues, fleet: GeneratedFleet, recording: StressRecorder) -> Demand:
    serving = sum(recording.serving_seconds.values())
    return Demand(
        arrived=jobs.arrived,
        finished=jobs.finished,
        running=jobs.running,
        waiting=jobs.waiting,
        waiting_seconds_max=_round(jobs.longest()),
        interrupted=jobs.interrupted,
        wait_seconds=spread(jobs.waits),
        idle_share=round(sum(recording.idle_seconds.values()) / max(serving, 1.0), 5),
        dollars_idle=round(_dollars(fleet, recording.idle_seconds), 2),
    )


def _dollars(fleet: GeneratedFleet, seconds: Mapping[str, float]) -> float:
    """The cost of machines for these times, by pool."""
    return sum(
        fleet.pools[pool].price_per_hour * each / SECONDS_PER_HOUR for pool, each in seconds.items()
    )


def _repairs(recording: StressRecorder) -> dict[str, Repairs]:
    found: dict[str, Counter[str]] = {}
    for each in recording.repairs:
        found.setdefault(each.kind, Counter())[each.outcome] += 1
    return {
        kind: Repairs(done=counts["done"], unwound=counts["unwound"], open=counts[""])
        for kind, counts in sorted(found.items())
    }


def _failures(recording: StressRecorder, xid_names: Mapping[int, str]) -> Failures:
    return Failures(
        by_type=_by_frequency(recording.struck),
        by_xid={str(code): count for code, count in sorted(recording.xids.items())},
        by_cause=_by_frequency(recording.causes),
        recovered_by_type=_by_frequency(recording.recovered),
        missed=_by_frequency(recording.missed),
        top_xids=[
            Named(name=str(code), count=count, text=xid_names.get(code, ""))
            for code, count in _by_frequency(recording.xids).items()
        ],
    )


def _by_frequency(counts: Mapping[T, int]) -> dict[T, int]:
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def cascades(done: Sequence[ScheduledFailure]) -> Cascades:
    """The failures that others caused."""
    followers = [each for each in done if each.parent]
    sizes = Counter(each.root for each in followers)
    return Cascades(
        chains=len(sizes),
        nodes=len(followers),
        depth_max=max((each.depth for each in followers), default=0),
        size_max=max(sizes.values(), default=-1) + 1,
    )


def _outages(
    spec: StressSpec, done: Sequence[ScheduledFailure], begins: float
) -> list[OutageReport]:
    struck = Counter(each.of for each in done if each.cause == "outage")
    return [
        OutageReport(
            name=each.name,
            scope=each.scope,
            target=each.target,
            type=each.failure_type,
            at=begins + float(each.start_time),
            seconds=float(each.duration),
            struck=struck[each.name],
        )
        for each in spec.chaos.scheduled_outages
    ]


def _budget(budget: PoolBudget) -> PoolBudget:
    return msgspec.structs.replace(
        budget,
        full_seconds=_round(budget.full_seconds),
        breaker_opened=_by_frequency(budget.breaker_opened),
        breaker_open_seconds=_round(budget.breaker_open_seconds),
    )


# --- repairs --------------------------------------------------------------------------------------


def stages(repair: Repair, end: float) -> list[RepairStage]:
    """The stages of a repair; each lasts until the next begins."""
    marks = [(repair.began_at, "begin")]
    if repair.noticed_at is not None and repair.noticed_at <= repair.began_at:
        marks.insert(0, (repair.noticed_at, "wait"))
    if repair.failed_at is not None:
        marks.insert(0, (repair.failed_at, "detect"))
    marks += [(at, step) for at, step, status in repair.steps if step and status == "started"]
    marks.sort(key=lambda each: each[0])
    until = repair.ended_at if repair.ended_at is not None else end
    ends = [*(at for at, _ in marks[1:]), until]
    return [
        RepairStage(name=name, at=_round(at), seconds=_round(max(stop - at, 0.0)))
        for (at, name), stop in zip(marks, ends, strict=True)
    ]


def _stage_seconds(ended: Sequence[Repair]) -> dict[str, Spread]:
    found: dict[str, list[float]] = {}
    for repair in ended:
        sums: Counter[str] = Counter()
        for stage in stages(repair, 0.0):
            sums[stage.name] += stage.seconds  # type: ignore[assignment]
        for name, seconds in sums.items():
            found.setdefault(name, []).append(seconds)
    return {name: spread(each) for name, each in found.items()}


def _slowest(recording: StressRecorder, end: float) -> list[RepairStory]:
    """The longest repairs; an open one lasts until the end of the run."""

    def duration(repair: Repair) -> float:
        until = repair.ended_at if repair.ended_at is not None else end
        return until - repair.unhealthy_since

    ranked = sorted(recording.repairs, key=lambda each: (-duration(each), each.saga))
    return [_story(each, duration(each), end) for each in ranked[:SLOWEST_MAX]]


def _story(repair: Repair, lasted: float, end: float) -> RepairStory:
    marks = [
        (repair.failed_at, "the machine fails"),
        (repair.noticed_at, "judged unhealthy, or lost"),
        (repair.began_at, f"{repair.kind} begins"),
        *((at, f"{step or repair.kind} {status}") for at, step, status in repair.steps),
    ]
    moments = [TimelineMoment(at=_round(at), text=text) for at, text in marks if at is not None]
    return RepairStory(
        saga=repair.saga,
        node=repair.node,
        new_node=repair.new_node,
        pool=repair.pool,
        fault_signature=repair.fault_signature,
        reason=repair.reason,
        at=_round(repair.unhealthy_since),
        seconds=_round(lasted),
        outcome=repair.outcome,
        stages=stages(repair, end),
        moments=sorted(moments, key=lambda each: each.at),
    )
