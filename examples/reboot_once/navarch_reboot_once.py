"""The remediator reboot-once of Navarch: a node is rebooted once a week, and then replaced.

    pools:
      training:
        health:
          remediation: {type: reboot-once, days: 7}

It is pure: no clock and no I/O, and the same answer for the same arguments.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec
from navarch.schemas.node_records import NodeRecord, RemediationAttempt
from navarch.schemas.settings import Setting
from navarch.services.pool_manager.planner.remediator import RemedyChoice

DAY: Final = timedelta(days=1)


class RebootOnce:
    """Chooses what is done about one unhealthy node; breaker and budget decide when."""

    class Options(Setting, frozen=True, kw_only=True):
        """Holds what a configuration sets."""

        days: Annotated[float, msgspec.Meta(gt=0, le=365)] = 7.0
        """A fault that is back so soon after a reboot was not removed by it."""

    def __init__(self, *, options: Options) -> None:
        """Keep the options."""
        self._window = timedelta(days=options.days)

    def choose(
        self, node: NodeRecord, attempts: Sequence[RemediationAttempt], now: datetime
    ) -> RemedyChoice:
        """Choose; `attempts` are those for the current fault, oldest first."""
        if node.health_action == "inspect":
            return RemedyChoice(remedy="inspect", reason="its verdict calls for a person")
        lately = [each for each in attempts if _counts(each) and each.at > now - self._window]
        if lately:
            reason = f"it was rebooted at {lately[-1].at:%Y-%m-%d %H:%M} UTC without success"
            return RemedyChoice(remedy="replace", reason=reason)
        reason = f"it was not rebooted for this fault within {self._window / DAY:g} days"
        return RemedyChoice(remedy="reboot", reason=reason, attempt=1, attempts_max=1)


def _counts(attempt: RemediationAttempt) -> bool:
    """Return whether the machine was in fact rebooted, or may be by now."""
    return attempt.kind == "reboot" and attempt.tried and attempt.outcome != "cancelled"
