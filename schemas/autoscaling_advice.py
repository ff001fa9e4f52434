"""Autoscaling advice that is not followed, and why; part of the pool's record."""

from typing import Final, Literal

from schemas.messages import Record
from schemas.value_limits import Int, Seconds, UtcTime

LimitedBy = Literal["cooldown", "limits", "observe", "failed", "source"]
"""cooldown: the last change of size is too recent; limits: min_nodes or max_nodes; observe: the
pool's mode; failed: the autoscaler raised; source: the pool's metrics source does not reply."""

IDLE: Final = "idle_after"
"""In place of the autoscaler: it is not known which nodes have no work."""


class AutoscalingAdvice(Record, frozen=True, kw_only=True):
    """A size that the autoscaler requests and the pool does not have."""

    autoscaler: str
    """Type of the autoscaler, or IDLE."""
    limited_by: LimitedBy
    since: UtcTime
    nodes: Int | None = None
    """The size it requests; None: unknown."""
    reason: str = ""
    """The autoscaler's reason, as of the last change."""
    detail: str = ""
    """The limit that applies, or what failed."""
    until: UtcTime | None = None
    """When the cooldown ends."""
    again_seconds: Seconds = 0.0
    """Interval between two evaluations."""
