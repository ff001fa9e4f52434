"""The autoscaler office-hours of Navarch: more nodes while GPUs are busy, few outside of hours.

    pools:
      training:
        autoscaling: {type: office-hours, begin: 9, end: 18, outside: 1}

Hours are in UTC. scenario.yaml tries it on a simulated fleet before it is trusted with money.
"""

from typing import Annotated

import msgspec
from navarch.schemas.settings import Nodes, Percent, Setting
from navarch.services.pool_manager.autoscaling.autoscalers import PoolState, Recommendation, stay

Hour = Annotated[int, msgspec.Meta(ge=0, le=24)]


class OfficeHours:
    """Recommends one node more or less at a time by day, and a fixed number by night."""

    class Options(Setting, frozen=True, kw_only=True):
        """Holds what a configuration sets."""

        begin: Hour = 9
        end: Hour = 18
        busy_at: Percent = 80.0
        """A node is added above this utilization, and removed below half of it."""
        outside: Nodes = 0
        """How many nodes are left outside of office hours."""

    def __init__(self, *, options: Options) -> None:
        """Keep the options."""
        self._options = options

    def recommend(self, state: PoolState) -> Recommendation:
        """Recommend the number of nodes at this hour."""
        options, used = self._options, state.metrics.utilization
        if not options.begin <= state.now.hour < options.end:
            return Recommendation(target_nodes=options.outside, reason="outside of office hours")
        if used is not None and used > options.busy_at:
            reason = f"utilization {used:.1f}% is above {options.busy_at:g}%"
            return Recommendation(target_nodes=state.current_nodes + 1, reason=reason)
        if used is not None and used < options.busy_at / 2:
            reason = f"utilization {used:.1f}% is below {options.busy_at / 2:g}%"
            return Recommendation(target_nodes=max(0, state.current_nodes - 1), reason=reason)
        return stay(state, "no change needed")
