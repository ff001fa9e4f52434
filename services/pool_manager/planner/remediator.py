"""The contract of a Remediator, which decides about one unhealthy node, and our own three. Pure.

The second gate: holds and windows have let the node be touched, breaker and budget come after. A
Remediator looks at a node and at what was tried on it, and says a remedy; whether and when that
happens is not its business. A plugin is a class of this shape with an inner struct `Options`, found
by entry point (`navarch.remediators`) or as `module:Class`, and constructed with `options=`. It
must answer the same for the same arguments, and read no clock: decisions are repeated.

The ladder, from the rung that the verdict's action asks for:

```
restart_app, none ─► replace      inspect ─► a person
reset_gpu ─► reset the GPU, twice at most ─► reboot, once ─► replace
reboot                                   ─► reboot, twice at most ─► replace
```

A rung that failed is not tried again; nor is one that helped so often that the same fault came back
within the window. A node with a GPU off the bus is rebooted once before it is replaced, by `ladder`
and `replace`, where its provider can switch its machine off and on. One with a contained memory
error has its GPU reset once before, by `replace` as well; where the error left it degraded, once
its work has left, and it is never replaced. One whose driver is not loaded is rebooted once, by
`replace` as well, and then left to people: another machine would have the same image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final, Protocol

import msgspec

from schemas.duration import Duration
from schemas.enums import Action, Remediation
from schemas.fault_signature import CONTAINED, OFF_THE_BUS, called
from schemas.node_records import NodeRecord, RemediationAttempt
from schemas.settings import Setting
from services.pool_manager.planner.node_counts import is_gone, is_left_by_repair

RUNGS: Final[tuple[Remediation, ...]] = ("reset-gpu", "reboot", "replace")
"""From the gentlest to the last."""
ASKED: Final[dict[Action, Remediation]] = {
    "none": "replace",
    "restart_app": "replace",
    "inspect": "inspect",
    "reset_gpu": "reset-gpu",
    "reboot": "reboot",
    "replace": "replace",
}
"""What a verdict calls for -> where the ladder begins. An unhealthy node whose verdict calls for
nothing that we could do to it is replaced."""

ONCE_WINDOW: Final = timedelta(days=1)
"""What is tried once before a node is replaced is not tried again within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyChoice:
    """A remedy, and why it is this one."""

    remedy: Remediation
    reason: str = ""
    """Appended to what the node has; empty where the verdict says it all."""
    attempt: int = 0
    """Which attempt at remediating the node in place, of `attempts_max`; 0: none is made."""
    attempts_max: int = 0
    drains: bool = False
    """Whether the work of a node that is inspected leaves it first."""


class Remediator(Protocol):
    """Chooses the remedy of one unhealthy node."""

    def choose(
        self, node: NodeRecord, attempts: Sequence[RemediationAttempt], now: datetime
    ) -> RemedyChoice:
        """Choose; `attempts`: those for the current fault signature, oldest first."""


class Replace:
    """Replaces every unhealthy node whose GPU needs more than its reset."""

    class Options(Setting, frozen=True, kw_only=True):
        """The remediator has no options."""

    def __init__(self, *, options: Options) -> None:
        del options

    def choose(
        self, node: NodeRecord, attempts: Sequence[RemediationAttempt], now: datetime
    ) -> RemedyChoice:
        """Replace it, unless something that keeps it is tried before."""
        kept = (
            driver_restart(node, attempts, now)
            or cold_restart(node, attempts, now)
            or contained_reset(node, attempts, now)
        )
        return kept or RemedyChoice(remedy="replace")


class AlertOnly:
    """Leaves every unhealthy node to people."""

    class Options(Setting, frozen=True, kw_only=True):
        """The remediator has no options."""

    def __init__(self, *, options: Options) -> None:
        del options

    def choose(
        self, node: NodeRecord, attempts: Sequence[RemediationAttempt], now: datetime
    ) -> RemedyChoice:
        """Notify operators, and touch nothing."""
        del attempts, now
        return RemedyChoice(
            remedy="alert", reason=f"the pool has remediation: alert. {by_hand(node)}"
        )


class Ladder:
    """Tries what is gentlest first."""

    class Options(Setting, frozen=True, kw_only=True):
        """Names what the configuration may say of the ladder."""

        tries: Annotated[int, msgspec.Meta(ge=1, le=10)] = 2
        """How often the rung that the verdict asks for is taken; each rung above it is once."""
        window: Duration = Duration(86_400)
        """So long an attempt counts: the same fault signature within it was not removed."""

    def __init__(self, *, options: Options) -> None:
        self._tries = options.tries
        self._window = timedelta(seconds=options.window)

    def choose(
        self, node: NodeRecord, attempts: Sequence[RemediationAttempt], now: datetime
    ) -> RemedyChoice:
        """Choose the lowest rung that may still help."""
        if kept := driver_restart(node, attempts, now):
            return kept
        asked = _asked(node)
        if asked == "inspect":
            reason = f"its verdict calls for an inspection. {by_hand(node)}"
            return RemedyChoice(remedy="inspect", reason=reason)
        counted = [
            each
            for each in attempts
            if each.outcome in ("recovered", "failed") and each.tried
            if each.at >= now - self._window
        ]
        rungs = RUNGS[RUNGS.index(asked) :]
        attempts_max = self._tries + len(rungs) - 2
        for rung in rungs[:-1]:
            if rung == "reset-gpu" and node.lost:
                # Only its agent could do it, and that is gone.
                continue
            tried = [each for each in counted if each.kind == rung]
            allowed = self._tries if rung == asked else 1
            if len(tried) < allowed and not any(each.outcome == "failed" for each in tried):
                return RemedyChoice(
                    remedy=rung,
                    reason=_describe_attempts(counted),
                    attempt=len(counted) + 1,
                    attempts_max=max(attempts_max, len(counted) + 1),
                )
        last = cold_restart(node, attempts, now)
        return last or RemedyChoice(remedy="replace", reason=_describe_attempts(counted))


BUILT_IN: Final[dict[str, type[Replace | Ladder | AlertOnly]]] = {
    "replace": Replace,
    "ladder": Ladder,
    "alert": AlertOnly,
}
"""`remediation:` -> what does it."""
REPLACE: Final = Replace(options=Replace.Options())


def lacks_driver(node: NodeRecord) -> bool:
    """Return whether a node is degraded because its driver is not loaded, or of another version.

    Of what a driver may have, the default policy has nothing else that degrades a node and calls
    for a reboot.
    """
    of_driver = node.health_kind == "probe_failed" and node.health_action == "reboot"
    return of_driver and node.health == "degraded" and not node.lost


def driver_restart(
    node: NodeRecord, attempts: Sequence[RemediationAttempt], now: datetime
) -> RemedyChoice | None:
    """Return the reboot of a node whose driver is not loaded, and after that a person.

    Once within ONCE_WINDOW, and never again while the node is cordoned as it has not helped: then
    an operator may be at work on it.
    """
    if not lacks_driver(node):
        return None
    if is_left_by_repair(node) or _tried_lately(attempts, now):
        tried = _describe_attempts([each for each in attempts if each.outcome != "cancelled"])
        return RemedyChoice(remedy="alert", reason=f"{tried}. {by_hand(node)}")
    reason = "a reboot loads the driver that is installed"
    return RemedyChoice(remedy="reboot", reason=reason, attempt=1, attempts_max=1)


def cold_restart(
    node: NodeRecord, attempts: Sequence[RemediationAttempt], now: datetime
) -> RemedyChoice | None:
    """The reboot of a node with a GPU off the bus whose machine can be switched off and on.

    Once within ONCE_WINDOW: a GPU that is off the bus again after that is broken.
    """
    off_the_bus = called(node.health_kind, node.health_code) in OFF_THE_BUS
    if not node.restarts_cold or node.health != "unhealthy" or not off_the_bus or is_gone(node):
        return None
    if _tried_lately(attempts, now):
        return None
    reason = "its machine is switched off and on before it is given up"
    return RemedyChoice(remedy="reboot", reason=reason, attempt=1, attempts_max=1)


def contained_reset(
    node: NodeRecord, attempts: Sequence[RemediationAttempt], now: datetime
) -> RemedyChoice | None:
    """The reset of a GPU that had a contained memory error: it remaps the faulty row.

    Once within ONCE_WINDOW. Only the node's agent can do it.
    """
    contained = called(node.health_kind, node.health_code) == CONTAINED
    if not contained or node.lost or _tried_lately(attempts, now):
        return None
    reason = "the reset of its GPU remaps the faulty row"
    return RemedyChoice(remedy="reset-gpu", reason=reason, attempt=1, attempts_max=1)


def _tried_lately(attempts: Sequence[RemediationAttempt], now: datetime) -> bool:
    counted = (each for each in attempts if each.tried and each.outcome != "cancelled")
    return any(each.at >= now - ONCE_WINDOW for each in counted)


def by_hand(node: NodeRecord) -> str:
    """Return what a person can do about an unhealthy node."""
    name = node.node
    return (
        f"What you can do: navarch reset-gpu {name}, navarch reboot {name}, "
        f"navarch replace {name}, or navarch uncordon {name} if it is well"
    )


def _asked(node: NodeRecord) -> Remediation:
    if node.health == "unhealthy" or (node.health == "degraded" and not node.lost):
        return ASKED[node.health_action]
    # It is silent, and nothing that was reported before is the reason. What is gone cannot be
    # rebooted; else that may bring its agent back.
    return "replace" if is_gone(node) else "reboot"


def _describe_attempts(counted: Sequence[RemediationAttempt]) -> str:
    """What was tried, in words."""
    parts = []
    for kind in dict.fromkeys(each.kind for each in counted):
        of_kind = [each for each in counted if each.kind == kind]
        failed = next((each for each in reversed(of_kind) if each.outcome == "failed"), None)
        name = "GPU reset" if kind == "reset-gpu" else kind
        if failed is not None:
            parts.append(f"a {name} failed: {failed.reason}")
        else:
            times = "once" if len(of_kind) == 1 else f"{len(of_kind)} times"
            parts.append(f"a {name} has not helped, {times}")
    return "; ".join(parts)
