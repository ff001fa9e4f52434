"""Defines an Autoscaler, and our own: reactive, queue, scheduled, predictive, composite. Pure.

An Autoscaler sees a pool's state and says how many nodes it should have, and why. Whether that
is done is not its business: `sizing` keeps it within min_nodes and max_nodes and apart by the
cooldown. A plugin is a class of this shape with an inner struct `Options`, found by entry point
(`navarch.autoscalers`) or as `module:Class`, and constructed with `options=`. It reads no clock
(`state.now` is the time) and does no I/O: what it needs to know comes from a MetricsSource.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec

from schemas.duration import Duration
from schemas.settings import Nodes, Percent, Setting, WindowSpec
from services.pool_manager.autoscaling.metrics_sources import WaitingJobs
from services.pool_manager.autoscaling.queue_demand import demand_of
from services.pool_manager.planner.safety.maintenance_windows import opening
from services.settings.window_validation import window_problem

HISTORY_MIN: Final = 3
"""Samples without which there is no trend."""
SAME_PERCENT: Final = 10.0
"""A forecast this near to what is aimed at changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetrics:
    """The figures show how a pool is used; None: unknown."""

    utilization: float | None = None
    """Of its GPUs, on average, in percent."""
    pending_jobs: int | None = None
    """Waiting for nodes."""
    queue_depth: int | None = None
    """Waiting or running."""
    waiting: tuple[WaitingJobs, ...] | None = None
    """The jobs that wait, with the nodes that each needs."""
    busy_nodes: int | None = None
    """Nodes with work on them."""
    not_for_nodes: int = 0
    """Jobs that wait for something else than nodes."""
    not_for_pool: int = 0
    """Jobs that wait for nodes that the pool does not have."""
    source_problem: str = ""
    """Why the pool's metrics source says nothing now; empty: it answers, or there is none."""
    utilization_history: tuple[float, ...] = ()
    """One sample an interval, oldest first."""
    ready_nodes_history: tuple[int, ...] = ()
    """Nodes in service at each of these samples; absent: as many as now."""

    @property
    def queued(self) -> int | None:
        """Jobs that wait for nodes; None: unknown."""
        if self.waiting is None:
            return self.pending_jobs
        return sum(each.count for each in self.waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """The state of a pool is all that an Autoscaler looks at."""

    pool: str
    current_nodes: int
    """What is wanted now, nodes on their way included."""
    ready_nodes: int
    """In service."""
    min_nodes: int
    max_nodes: int
    gpus_per_node: int = 0
    """0: unknown."""
    metrics: PoolMetrics = field(default_factory=PoolMetrics)
    interval_seconds: float = 30.0
    """Between two samples of the history."""
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """An autoscaler recommends a number of nodes; outside of the pool's bounds it is clamped."""

    target_nodes: int
    reason: str
    gangs: tuple[int, ...] = ()
    """How many nodes each job of several nodes needs for which it grows, in their order."""


class Autoscaler(Protocol):
    """Says how many nodes a pool should have."""

    def recommend(self, state: PoolState) -> Recommendation:
        """Look at the pool's state; `current_nodes` where nothing should change."""


def stay(state: PoolState, reason: str) -> Recommendation:
    """Recommend the current number of nodes, for this reason."""
    return Recommendation(target_nodes=state.current_nodes, reason=reason)


def held(state: PoolState) -> Recommendation | None:
    """Keep the size while the metrics source is silent: what it would say is not known."""
    if not state.metrics.source_problem:
        return None
    return stay(state, f"the metrics source does not answer: {state.metrics.source_problem}")


class Reactive:
    """Some nodes more where the GPUs are busy, some fewer where they are idle."""

    class Options(Setting, frozen=True, kw_only=True):
        """Options of `reactive` in the configuration bound utilization and set the step."""

        scale_up_at: Percent = 80.0
        """Utilization above which the pool grows."""
        scale_down_at: Percent = 20.0
        """Utilization below which it shrinks."""
        step: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1
        """Nodes by which it grows or shrinks at once."""
        grow_without_queue: bool = False
        """Whether busy GPUs are enough to grow where a metrics source says that no job waits."""

        def __post_init__(self) -> None:
            """Refuse bounds that would have it go up and down at once."""
            if self.scale_down_at >= self.scale_up_at:
                raise ValueError("scale_down_at must be less than scale_up_at")

    def __init__(self, *, options: Options) -> None:
        self._options = options

    def recommend(self, state: PoolState) -> Recommendation:
        """Compare the utilization, shared with the nodes that are on their way, with the bounds."""
        if kept := held(state):
            return kept
        used, queued = state.metrics.utilization, state.metrics.queued
        if not state.current_nodes and queued:
            reason = f"{queued} jobs wait, and there is no node"
            return Recommendation(target_nodes=self._options.step, reason=reason)
        if used is None:
            return stay(state, "no samples: how busy the GPUs are is not known")
        if used > self._options.scale_up_at:
            return self._up(state, used, queued)
        if used < self._options.scale_down_at:
            return self._down(state, used, queued)
        return stay(state, f"utilization {used:.1f}% is in between")

    def _up(self, state: PoolState, used: float, queued: int | None) -> Recommendation:
        options = self._options
        shared = used * state.ready_nodes / max(state.current_nodes, state.ready_nodes, 1)
        if shared <= options.scale_up_at:
            coming = state.current_nodes - state.ready_nodes
            return stay(state, f"utilization {used:.1f}%: {coming} nodes are on their way")
        if queued == 0 and not options.grow_without_queue:
            return stay(state, f"utilization {used:.1f}%, and no job waits for more nodes")
        reason = f"utilization {used:.1f}% is above {options.scale_up_at:g}%"
        return Recommendation(target_nodes=state.current_nodes + options.step, reason=reason)

    def _down(self, state: PoolState, used: float, queued: int | None) -> Recommendation:
        """Not so far that it would go up again, and to zero only where a queue brings it back."""
        options = self._options
        reason = f"utilization {used:.1f}% is below {options.scale_down_at:g}%"
        least = 0 if queued == 0 and not used else 1
        for step in range(options.step, 0, -1):
            left = state.current_nodes - step
            if left >= least and used * state.ready_nodes <= options.scale_up_at * left:
                return Recommendation(target_nodes=left, reason=reason)
        return stay(state, f"{reason}, and fewer nodes would be too busy, or none")


class Queue:
    """Recommends as many nodes as the jobs that wait or run need."""

    class Options(Setting, frozen=True, kw_only=True):
        """Options of `queue` in the configuration say how many jobs a node takes."""

        jobs_per_node: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = 1.0
        """How many jobs one node runs at once."""

    def __init__(self, *, options: Options) -> None:
        self._each = options.jobs_per_node

    def recommend(self, state: PoolState) -> Recommendation:
        """Divide the queue among nodes."""
        if kept := held(state):
            return kept
        if state.metrics.waiting is not None:
            return self._by_demand(state, state.metrics.waiting)
        pending, depth = state.metrics.pending_jobs, state.metrics.queue_depth
        if depth is not None:
            target = math.ceil(depth / self._each)
            return Recommendation(target_nodes=target, reason=f"{depth} jobs wait or run")
        if pending is None:
            return stay(state, "no metrics source reports a queue")
        if not pending:
            return stay(state, "no job waits; how many run is not known")
        target = max(state.current_nodes, state.ready_nodes + math.ceil(pending / self._each))
        return Recommendation(target_nodes=target, reason=f"{pending} jobs wait")

    def _by_demand(self, state: PoolState, waiting: Sequence[WaitingJobs]) -> Recommendation:
        """As many as the jobs on their nodes keep, and the waiting ones need as wholes."""
        busy = state.metrics.busy_nodes
        used = state.ready_nodes if busy is None else busy
        demand = demand_of(
            waiting,
            gpus_per_node=state.gpus_per_node,
            jobs_per_node=self._each,
            room=state.max_nodes - used,
            nodes_max=state.max_nodes,
        )
        target = used + demand.nodes
        reason = f"{demand.jobs} waiting jobs need {demand.nodes} nodes"
        if busy is None:
            target = max(target, state.current_nodes)
        else:
            reason = f"{busy} nodes are busy, {reason}"
        if demand.without_room:
            reason += f"; max_nodes {state.max_nodes} has no room for {demand.without_room} more"
        if demand.too_large:
            reason += f"; {demand.too_large} are larger than the pool can be"
        if state.metrics.not_for_nodes:
            reason += f"; {state.metrics.not_for_nodes} do not wait for nodes"
        if state.metrics.not_for_pool:
            reason += f"; {state.metrics.not_for_pool} need nodes of another kind"
        return Recommendation(target_nodes=target, reason=reason, gangs=demand.gangs)


class Period(Setting, frozen=True, kw_only=True):
    """A time that comes again, and the size that the pool has then: `nodes`, or within bounds."""

    start: str
    """A cron expression of five fields: `0 8 * * 1-5`."""
    duration: Duration
    """From `start` on."""
    timezone: str = "UTC"
    """In which `start` is read: `Europe/Berlin`."""
    nodes: Nodes | None = None
    """The size during the period, which excludes the keys below."""
    min_nodes: Nodes | None = None
    """At least so many during the period; absent: the pool's."""
    max_nodes: Nodes | None = None
    """Bounds during the period, within those of the pool; absent: the pool's."""
    autoscaler: dict[str, Any] | None = None
    """What decides within the bounds; absent: the schedule's `fallback`."""

    def __post_init__(self) -> None:
        """Refuse what is no time, and what is no size."""
        if wrong := window_problem(self.window(), ()):
            raise ValueError(f"{wrong[0]}: {wrong[1]}")
        others = (self.min_nodes, self.max_nodes, self.autoscaler)
        if self.nodes is not None and any(each is not None for each in others):
            raise ValueError("`nodes` excludes min_nodes, max_nodes and autoscaler; remove one")
        if self.nodes is None and all(each is None for each in others):
            raise ValueError("has no size; add `nodes`, or min_nodes and max_nodes")
        if None not in others[:2] and self.min_nodes > self.max_nodes:  # type: ignore[operator]
            raise ValueError(f"min_nodes {self.min_nodes} is above max_nodes {self.max_nodes}")

    def window(self) -> WindowSpec:
        """Return the period as a window."""
        return WindowSpec(
            name="period",
            kind="service",
            start=self.start,
            duration=self.duration,
            timezone=self.timezone,
        )


class Scheduled:
    """A size, or bounds of it, at these times; and at all others."""

    class Options(Setting, frozen=True, kw_only=True):
        """Options of `scheduled` in the configuration list the periods and the fallback."""

        schedule: Annotated[tuple[Period, ...], msgspec.Meta(min_length=1, max_length=100)]
        otherwise: Nodes | None = None
        """At all other times. Absent: what `fallback` recommends, or min_nodes without one."""
        fallback: dict[str, Any] | None = None
        """Autoscaler that decides within the pool's bounds, and within those of a period."""

        def __post_init__(self) -> None:
            """Refuse two answers for the same time."""
            if self.otherwise is not None and self.fallback is not None:
                raise ValueError("`otherwise` and `fallback` exclude each other; remove one")

    def __init__(
        self,
        *,
        options: Options,
        parts: Sequence[Autoscaler | None],
        fallback: Autoscaler | None = None,
    ) -> None:
        """Keep the schedule; `parts`: what decides in each of its periods."""
        self._options = options
        self._parts = tuple(parts)
        self._fallback = fallback

    @property
    def inner(self) -> tuple[Autoscaler, ...]:
        """Return the autoscalers that it asks."""
        return tuple(each for each in (*self._parts, self._fallback) if each is not None)

    def recommend(self, state: PoolState) -> Recommendation:
        """Return what the current period that wants most says; else the fallback or `otherwise`."""
        now = [
            _in_period(period, part or self._fallback, state)
            for period, part in zip(self._options.schedule, self._parts, strict=True)
            if opening([period.window()], "service", state.now)
        ]
        if now:
            return max(now, key=lambda each: each.target_nodes)
        if self._fallback is not None:
            return self._fallback.recommend(state)
        rest = self._options.otherwise
        return Recommendation(
            target_nodes=state.min_nodes if rest is None else rest, reason="nothing is scheduled"
        )


def _in_period(period: Period, part: Autoscaler | None, state: PoolState) -> Recommendation:
    when = f"scheduled: {period.start} ({period.timezone})"
    if period.nodes is not None:
        return Recommendation(target_nodes=period.nodes, reason=when)
    low = state.min_nodes if period.min_nodes is None else period.min_nodes
    high = state.max_nodes if period.max_nodes is None else period.max_nodes
    bounded = replace(state, min_nodes=low, max_nodes=max(low, high))
    found = part.recommend(bounded) if part else stay(bounded, "the size stays within them")
    target = min(max(found.target_nodes, low), bounded.max_nodes)
    reason = f"{when}, {low} to {bounded.max_nodes} nodes: {found.reason}"
    return replace(found, target_nodes=target, reason=reason)


class Predictive:
    """Recommends as many nodes as will be needed in a while, if the trend goes on."""

    class Options(Setting, frozen=True, kw_only=True):
        """Options of `predictive` in the configuration set the target, trend and reserve."""

        target_utilization: Annotated[float, msgspec.Meta(gt=0, le=100)] = 60.0
        """Percent of GPU utilization that the pool is sized for."""
        window: Annotated[int, msgspec.Meta(ge=HISTORY_MIN, le=60)] = 10
        """Samples that the trend is made of."""
        ahead: Duration = Duration(300)
        """About as long as a new node takes to be of use."""
        growth_factor: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
        """The trend counts so many times: above 1 for a reserve."""
        fallback: dict[str, Any] | None = None
        """Autoscaler that decides until there are `window` samples. Absent: 3 are enough."""

    def __init__(self, *, options: Options, fallback: Autoscaler | None = None) -> None:
        self._options = options
        self._fallback = fallback

    @property
    def inner(self) -> tuple[Autoscaler, ...]:
        """Return the autoscaler that it asks at first."""
        return () if self._fallback is None else (self._fallback,)

    def recommend(self, state: PoolState) -> Recommendation:
        """Continue the trend of the nodes' worth of work, and aim at the target with it."""
        if kept := held(state):
            return kept
        metrics, window = state.metrics, self._options.window
        history = metrics.utilization_history[-window:]
        if self._fallback is not None and len(history) < window:
            return self._fallback.recommend(state)
        if len(history) < HISTORY_MIN:
            return stay(state, f"{len(history)} samples are no trend yet")
        # In nodes and not in percent: the pool's own growth would look like a falling demand.
        nodes = metrics.ready_nodes_history[-window:] or (state.ready_nodes,) * len(history)
        work = [used * ready / 100 for used, ready in zip(history, nodes, strict=True)]
        aim = self._options.target_utilization
        steps = self._options.ahead / max(state.interval_seconds, 1.0)
        steps *= self._options.growth_factor
        # A pool can be asked for more than all of it: then the forecast goes beyond 100.
        ahead = max(work[-1] + slope(work) * steps, 0.0)
        forecast = 100 * ahead / max(state.ready_nodes, 1)
        if abs(forecast - aim) < SAME_PERCENT:
            return stay(state, f"utilization is to be {forecast:.0f}%, about what is aimed at")
        target = math.ceil(100 * ahead / aim)
        reason = f"utilization is to be {forecast:.0f}%, and {aim:g}% is aimed at"
        return Recommendation(target_nodes=target, reason=reason)


def slope(samples: Sequence[float]) -> float:
    """Return how much the samples rise from one to the next: the line of least squares. Pure."""
    count = len(samples)
    middle, mean = (count - 1) / 2, sum(samples) / count
    spread = sum((place - middle) ** 2 for place in range(count))
    return sum((place - middle) * (each - mean) for place, each in enumerate(samples)) / spread


class Composite:
    """Several at once: the one that wants most decides, or least, or their average."""

    class Options(Setting, frozen=True, kw_only=True):
        """Options of `composite` in the configuration list the autoscalers to combine."""

        mode: Literal["max", "min", "avg"] = "max"
        """avg: rounded up."""
        autoscalers: Annotated[
            tuple[dict[str, Any], ...], msgspec.Meta(min_length=1, max_length=20)
        ]
        """Each with its `type` and options."""

    def __init__(self, *, options: Options, parts: Sequence[tuple[str, Autoscaler]]) -> None:
        """Ask `parts`, each with its name."""
        self._mode = options.mode
        self._parts = tuple(parts)

    @property
    def inner(self) -> tuple[Autoscaler, ...]:
        """Return the autoscalers that it asks."""
        return tuple(each for _, each in self._parts)

    def recommend(self, state: PoolState) -> Recommendation:
        """Ask all of them."""
        recommendations = [(name, part.recommend(state)) for name, part in self._parts]
        if self._mode == "avg":
            sizes = [each.target_nodes for _, each in recommendations]
            target = math.ceil(sum(sizes) / len(sizes))
            named = ", ".join(f"{name} {each.target_nodes}" for name, each in recommendations)
            return Recommendation(target_nodes=target, reason=f"the average of {named}")
        choose = max if self._mode == "max" else min
        name, found = choose(recommendations, key=lambda each: each[1].target_nodes)
        return replace(found, reason=f"{name}: {found.reason}")
