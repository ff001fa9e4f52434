"""Whether an instance may stand twice for a moment, and for how long. Pure.

A cloud that knows no idempotency tokens cannot tell that two replicas ask for the same, which they
do where an acknowledgement is lost and the command comes to the second while the first waits for
its answer. The one whose answer is recorded last ends what it has made.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

RACE_SECONDS: Final = 2.0
"""Two that are made further apart were not asked for at the same time."""
ENDED_WITHIN_SECONDS: Final = 30.0


@dataclass(slots=True)
class Doubles:
    """What was made lately, and what stands twice."""

    racing: bool = False
    """Whether two replicas may ask at the same time, and the cloud cannot tell."""
    made_at: dict[str, float] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)

    def made(self, name: str, standing: int, now: float) -> str:
        """Take in that an instance was made; what is wrong with it, empty: nothing."""
        before = self.made_at.get(name)
        self.made_at[name] = now
        if standing <= 1:
            return ""
        if not self.racing or before is None or now - before > RACE_SECONDS:
            return f"{name} stands {standing} times"
        self.since.setdefault(name, now)
        return ""

    def look(self, standing: Callable[[str], int], now: float) -> str:
        """What has stood twice for too long; empty: nothing."""
        for name, since in list(self.since.items()):
            if standing(name) <= 1:
                del self.since[name]
            elif now - since > ENDED_WITHIN_SECONDS:
                return f"{name} stands twice since {now - since:.0f} s"
        return ""
