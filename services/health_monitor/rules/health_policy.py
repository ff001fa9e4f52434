"""A health policy, ready to judge: rules in order, each condition compiled once; first match wins.

Pure: a fault, the node's windows and a moment go in, a judgement comes out. Reading and checking
the file is `policy_file`'s business; what follows from a judgement is `core`'s.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final, Literal

import cel

from schemas.enums import Action, DrillReach, HealthStatus
from schemas.node_events import Fault, Metric
from services.health_monitor.rules.telemetry_levels import Level

Result = Literal["healthy", "degraded", "unhealthy"]
Scope = Literal["gpu", "node"]
Windows = Mapping[str, tuple[float, ...]]
"""Rule and scope -> the moments (epoch seconds) of the faults that its condition matched."""

ALWAYS_FATAL_CODES: Final = frozenset({48, 79, 94, 95})
"""XIDs that need no second: uncorrectable memory errors, and a GPU off the bus."""
ALWAYS_FATAL_KINDS: Final = frozenset({"fallen_off_bus", "gpu_lost"})
METRICS_MAX: Final = 64
MESSAGE_CHARS_MAX: Final = 4_096
"""What of a fault's metrics and message conditions are evaluated on; agents send less."""
STICKY_SECONDS: Final = 3600.0
"""How long a degraded result lasts where its rule does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule is one line of a policy."""

    name: str
    description: str
    condition: str
    result: Result
    action: Action
    fatal: bool | None = None
    """True: one such fault is enough whatever the pool's `unhealthy_after`; None: by its code."""
    count: int = 1
    window_seconds: float = 0.0
    apart_seconds: float = 0.0
    per: Scope = "gpu"
    sticky_seconds: float = STICKY_SECONDS
    delay_seconds: float = 0.0
    """How long a condition must have been held before it counts."""
    cancels: tuple[int | str, ...] = ()
    cordon: Scope = "node"
    """gpu: the node's other GPUs stay usable, so this one alone may be cordoned."""
    why: str = ""
    program: cel.Program

    def fatal_for(self, fault: Fault) -> bool:
        """Return whether one such fault is enough, whatever the pool's `unhealthy_after`."""
        if self.fatal is not None:
            return self.fatal
        if fault.kind in ALWAYS_FATAL_KINDS:
            return True
        return fault.kind == "xid" and fault.code in ALWAYS_FATAL_CODES


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A judgement is what a policy makes of one fault."""

    result: HealthStatus
    action: Action
    rule: str
    description: str = ""
    policy: str = ""
    fatal: bool = False
    sticky_seconds: float = STICKY_SECONDS
    delay_seconds: float = 0.0
    cancels: tuple[int | str, ...] = ()
    cordon: Scope = "node"
    windows: Windows = field(default_factory=dict)
    """The node's windows, this fault counted."""
    counted: int = 1
    """How many faults in the window made the rule match."""
    raised: tuple[tuple[str, str], ...] = ()
    """Rules whose condition could not be evaluated, and why; they do not match."""
    drill: DrillReach = ""
    """How far the drill goes whose fault it is; empty: a real fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy that has been checked and can judge faults."""

    file: str
    name: str
    hash: str
    """First 12 hex digits of the file's SHA-256."""
    rules: tuple[Rule, ...]
    levels: tuple[Level, ...] = ()
    """What in telemetry becomes a fault when it lasts."""

    def matching(self, fault: Fault, raised: list[tuple[str, str]] | None = None) -> Iterator[Rule]:
        """Every rule whose condition matches, in order; windows are not counted here.

        Rules whose condition cannot be evaluated do not match; they are noted in `raised`.
        """
        context = cel.Context({"event": event_of(fault)})
        for rule in self.rules:
            try:
                matched = rule.program.execute(context) is True
            except (KeyError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
                if raised is not None:
                    raised.append((rule.name, str(error)))
                continue
            if matched:
                yield rule

    def judge(self, fault: Fault, windows: Windows, now: datetime) -> Judgement:
        """Judge one fault; never raises, whatever its metrics are."""
        at = min(fault.time, now).timestamp()
        raised: list[tuple[str, str]] = []
        counts = dict(windows)
        for rule in self.matching(fault, raised):
            counted = 1
            if rule.window_seconds:
                counted = _count(counts, rule, fault.gpu_index, at)
                if counted < rule.count:
                    continue
            return Judgement(
                result=rule.result,
                action=rule.action,
                rule=rule.name,
                description=rule.description,
                policy=self.hash,
                fatal=rule.fatal_for(fault),
                sticky_seconds=rule.sticky_seconds,
                delay_seconds=rule.delay_seconds,
                cancels=rule.cancels,
                cordon=rule.cordon,
                windows=counts,
                counted=counted,
                raised=tuple(raised),
            )
        # Reached only where even the last rule could not be evaluated, which loading excludes.
        return Judgement(
            result="degraded",
            action="inspect",
            rule="(none)",
            description="no rule of the policy could be evaluated",
            policy=self.hash,
            windows=counts,
            raised=tuple(raised),
        )


def _count(counts: dict[str, tuple[float, ...]], rule: Rule, gpu_index: int, at: float) -> int:
    """Count this fault in the rule's window; one too near to the last counts as the same."""
    key = rule.name if rule.per == "node" else f"{rule.name}/{gpu_index}"
    times = tuple(t for t in counts.get(key, ()) if t > at - rule.window_seconds)
    if not times or at - times[-1] >= rule.apart_seconds:
        # More than `count` moments never matter, so no storm makes a window grow.
        times = (*times, at)[-rule.count :]
    counts[key] = times
    return len(times)


def event_of(fault: Fault) -> dict[str, Any]:
    """Return what a condition can refer to, under the name `event`."""
    metrics: dict[str, Metric] = dict(islice(fault.metrics.items(), METRICS_MAX))
    if fault.kind in ("xid", "sxid"):
        metrics.setdefault(f"{fault.kind}_code", fault.code)
    return {
        "event_type": fault.kind,
        "system": fault.system,
        "gpu_index": fault.gpu_index,
        "metrics": metrics,
        "message": fault.message[:MESSAGE_CHARS_MAX],
        "code": fault.code,
        "subcode": fault.subcode,
        "source": fault.source,
        "condition": fault.condition,
        "since": 0.0 if fault.since is None else (fault.time - fault.since).total_seconds(),
    }
