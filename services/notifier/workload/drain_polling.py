"""How often a drain is asked about. Pure."""

from typing import Final

POLL_FIRST_SECONDS: Final = 0.25
POLL_MAX_SECONDS: Final = 0.5
"""A drained node goes on within a second: two polls at most, and what the answer takes."""
POLL_GROWTH: Final = 1.25
POLLS_PER_SECOND_MAX: Final = 500.0
"""Of one process. Beyond 250 drains at once each is asked about more seldom, so that asking
neither starves the cordons behind it nor storms the workload system."""


def poll_seconds(polls: int, drains: int) -> float:
    """How long to wait before the next question, after `polls` of them, among `drains` drains."""
    # The exponent is bounded: a drain may be asked about for days.
    alone = min(POLL_FIRST_SECONDS * POLL_GROWTH ** min(polls, 16), POLL_MAX_SECONDS)
    return max(alone, drains / POLLS_PER_SECOND_MAX)
