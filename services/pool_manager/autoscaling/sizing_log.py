"""Logs each decision of an autoscaler as a line, with its inputs: docs/metrics.md."""

import logging
from typing import Any, Final

from schemas.autoscaling_advice import AutoscalingAdvice
from services.pool_manager.autoscaling.autoscalers import PoolState, Recommendation
from services.pool_manager.autoscaling.scaling_decision import SizeChange

log = logging.getLogger(__name__)

MESSAGE: Final = "autoscaler decided"
INPUTS: Final = (
    "utilization",
    "pending_jobs",
    "queue_depth",
    "busy_nodes",
    "not_for_nodes",
    "not_for_pool",
    "source_problem",
)


class SizingLog:
    """Logs every decision: at INFO where it is another than the one before, else at DEBUG."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[object, ...]] = {}

    def log(
        self,
        kind: str,
        state: PoolState,
        recommended: Recommendation,
        change: SizeChange | None,
        advice: AutoscalingAdvice | None,
    ) -> None:
        """Log what came of a recommendation, "no change" too."""
        about = decision_fields(kind, state, recommended, change, advice)
        news = tuple(about.get(key) for key in ("decision", "asked", "limited_by"))
        level = logging.DEBUG if self._last.get(state.pool) == news else logging.INFO
        self._last[state.pool] = news
        log.log(level, MESSAGE, extra=about)


def decision_fields(
    kind: str,
    state: PoolState,
    recommended: Recommendation,
    change: SizeChange | None,
    advice: AutoscalingAdvice | None,
) -> dict[str, Any]:
    """Return the fields of the logged line; a figure that is not known is left out. Pure."""
    decision = "no change"
    if change is not None:
        decision = "scale up" if change.event.nodes > change.event.previous else "scale down"
    fields: dict[str, Any] = {
        "pool": state.pool,
        "autoscaler": kind,
        "decision": decision,
        "asked": recommended.target_nodes,
        "nodes": state.current_nodes if change is None else change.event.nodes,
        "limited_by": "" if advice is None else advice.limited_by,
        "reason": recommended.reason,
        "ready_nodes": state.ready_nodes,
        "min_nodes": state.min_nodes,
        "max_nodes": state.max_nodes,
    }
    fields |= {name: getattr(state.metrics, name) for name in INPUTS}
    fields["waiting_jobs"] = state.metrics.queued
    return {name: value for name, value in fields.items() if value is not None and value != ""}
