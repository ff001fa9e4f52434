"""Which sagas removed which nodes, and how long each waited for the machine to go. Pure."""

from datetime import datetime
from typing import Final

from schemas.saga_log_entries import SagaEntry, SagaStarted, StepStarted, StepSucceeded

REMOVAL_SECONDS_MAX: Final = 1_500.0
"""So long a saga waits at most for a machine to be removed, the capacity of a cloud with a fixed
number included; a service may crash or stall meanwhile, several times."""


class NodeRemovals:
    """What the sagas' logs contain about removals."""

    def __init__(self) -> None:
        """None yet."""
        self.by: dict[str, SagaStarted] = {}
        """Node -> the saga that removed it; the sweep may end its machine later."""
        self.writes_refused = False
        """Whether a stream has ever refused writes: sagas wait for that, too."""
        self._since: dict[str, datetime] = {}
        """Saga -> when it began to wait."""

    def overdue(self, entry: SagaEntry, at: datetime) -> str:
        """How an entry shows that a pool was short because a machine did not go; empty: not."""
        if getattr(entry, "step", "") != "terminate":
            return ""
        if isinstance(entry, StepStarted):
            self._since[entry.saga] = at
        elif isinstance(entry, StepSucceeded):
            lasted = (at - self._since.pop(entry.saga, at)).total_seconds()
            if lasted > REMOVAL_SECONDS_MAX and not self.writes_refused:
                return f"{entry.saga} waited {lasted:.0f} s for its machine to go"
        return ""
