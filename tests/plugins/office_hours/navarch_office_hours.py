"""A third-party autoscaler: more nodes during office hours if GPUs are busy, few otherwise."""

from typing import Annotated

import msgspec

from schemas.settings import Nodes, Percent, Setting
from services.pool_manager.autoscaling.autoscalers import PoolState, Recommendation, stay

Hour = Annotated[int, msgspec.Meta(ge=0, le=24)]


class OfficeHours:
    """Reduces the pool at night."""

    class Options(Setting, frozen=True, kw_only=True):
        """Its options."""

        begin: Hour = 9
        end: Hour = 18
        busy_at: Percent = 80.0
        outside: Nodes = 0

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
