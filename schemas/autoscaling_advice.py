"""What a pool's autoscaler asks for and does not get, and why. In the pool's record."""

from typing import Literal

from schemas.messages import Record, UtcTime

LimitedBy = Literal["cooldown", "limits", "observe", "failed", "source"]
"""cooldown: the last change of size is too recent; limits: min_nodes or max_nodes; observe: the
pool's mode; failed: the autoscaler raised; source: the pool's metrics source does not answer."""


class Advice(Record, frozen=True, kw_only=True):
    """What is not followed, from when it began to be so; written where it changes."""

    autoscaler: str
    """Its type."""
    limited_by: LimitedBy
    since: UtcTime
    nodes: int | None = None
    """How many it asks for; None: nobody knows."""
    reason: str = ""
    """Its own, as of the last change."""
    detail: str = ""
    """The bound that it meets, or what went wrong."""
    until: UtcTime | None = None
    """When the cooldown is over."""
    again_seconds: float = 0.0
    """It is asked again so often."""
