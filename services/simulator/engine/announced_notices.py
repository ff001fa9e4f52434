"""The provider notices stored so far, and which drains they may cut short. Pure.

While a notice is in force, the drain of its node ends shortly before the deadline. After the notice
is withdrawn, the drain has its full time.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from schemas.enums import TAKING
from schemas.node_events import ProviderNotice
from services.pool_manager.planner.announced_restarts import RESTARTING

MARGIN: Final = timedelta(seconds=6)
"""A drain is cut short at most so long before the notice's deadline."""
HEARD: Final = timedelta(seconds=10)
"""After a withdrawal, a replica that has not processed it may still cut a drain for so long."""


@dataclass(slots=True)
class _Notice:
    deadline: datetime | None
    cuts: bool
    """Whether it ends drains: the cloud takes the node, or says when it restarts it."""
    withdrawn_at: datetime | None = None


@dataclass(slots=True)
class AnnouncedNotices:
    """The notices of all nodes."""

    nodes: dict[str, dict[str, _Notice]] = field(default_factory=dict)

    def add(self, event: ProviderNotice, at: datetime) -> None:
        """Add a notice that was stored `at` a moment."""
        notices = self.nodes.setdefault(event.node, {})
        if not event.withdrawn:
            # A repeated announcement changes nothing but the deadline, if it comes earlier.
            restarts = event.effect in RESTARTING and event.deadline is not None
            cuts = event.effect in TAKING or restarts
            first = notices.setdefault(event.notice, _Notice(event.deadline, cuts))
            if first.deadline is not None and event.deadline is not None:
                first.deadline = min(first.deadline, event.deadline)
        elif (known := notices.get(event.notice)) is None:
            notices[event.notice] = _Notice(event.deadline, cuts=True, withdrawn_at=at)
        elif known.withdrawn_at is None:
            known.withdrawn_at = at

    def restored(self) -> None:
        """A backup may be older than the withdrawals, which the cloud does not repeat."""
        for notices in self.nodes.values():
            for each in notices.values():
                each.withdrawn_at = None

    def takes(self, node: str, at: datetime) -> bool:
        """Whether a notice justifies ending a node's drain `at` a moment."""
        return any(
            each.cuts
            and (each.deadline is None or at >= each.deadline - MARGIN)
            and (each.withdrawn_at is None or at < each.withdrawn_at + HEARD)
            for each in self.nodes.get(node, {}).values()
        )
