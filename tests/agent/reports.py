"""Collects what a GPU monitor reports in a test; conditions need not last."""

from agent.conditions.declared import CONDITIONS
from agent.conditions.engine import Conditions, Observed, held_of, started, step
from agent.faults.sample_changes import SampleChange

LASTING_SECONDS = 60.0
AT_ONCE = {each.name: 0.0 for each in CONDITIONS if each.begins_seconds < LASTING_SECONDS}


class Reports:
    """Collects reports; every step takes long enough for an end."""

    def __init__(self) -> None:
        self.published: list[tuple[str, int, str]] = []
        self.over: list[tuple[str, int]] = []
        self.state = Conditions()

    def restart(self, *, same_boot: bool) -> None:
        """Go on as an agent does that starts again."""
        self.state = started(self.state, 1.0, same_boot=same_boot)

    def changed(self, change: SampleChange) -> None:
        """Take a change."""
        self.published.append((change.kind, change.index, change.subcode))

    def observe(self, observed: Observed) -> None:
        """Take what was read."""
        self.state, changes = step(self.state, observed, 1.0, 20.0, AT_ONCE)
        for change in changes:
            held = held_of(change.track)
            if change.over:
                self.over.append((held.name, held.gpu))
            else:
                self.published.append((held.kind, held.gpu, held.subcode))

    def kinds(self) -> list[tuple[str, int, str]]:
        """Return what was reported since the last look."""
        found = list(self.published)
        self.published.clear()
        return found
