"""Keeps the conditions of this host between the readers and the reporter."""

from collections.abc import Callable, Mapping

from agent.conditions.engine import ConditionChange, Conditions, Observed, held, started, step
from schemas.held_conditions import ConditionList, bounded
from services.primitives.clock import Clock


class ConditionWatch:
    """Holds the state of the engine between the readers and the reporter."""

    def __init__(
        self,
        clock: Clock,
        boot_id: str,
        before: Conditions,
        *,
        same_boot: bool,
        publish: Callable[[ConditionChange], None],
        begins: Mapping[str, float],
    ) -> None:
        """Go on from an earlier run; `begins`: seconds in place of the table's, by name."""
        self._clock = clock
        self._boot_id = boot_id
        self._publish = publish
        self._begins = begins
        self._looked_at: dict[str, float] = {}
        self.state = started(before, clock.now().timestamp(), same_boot=same_boot)
        self.list = self._listed()

    def observe(self, observed: Observed) -> None:
        """Take in what one reader says."""
        now = self._clock.monotonic()
        elapsed = now - self._looked_at.get(observed.reader, now)
        self._looked_at[observed.reader] = now
        before = self.state
        wall = self._clock.now().timestamp()
        self.state, changes = step(before, observed, wall, elapsed, self._begins)
        for change in changes:
            self._publish(change)
        if changes or self.state.unread != before.unread:
            self.list = self._listed()

    def _listed(self) -> ConditionList:
        return bounded(self._boot_id, self.state.counter, held(self.state))
