"""The sagas, removals and provider notices of a simulation, as the logs have had them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from schemas.enums import TAKING
from schemas.node_events import ProviderNotice
from schemas.saga_log_entries import (
    SagaDone,
    SagaEntry,
    SagaStarted,
    SagaUnwound,
    StepStarted,
    StepSucceeded,
    saga_codec,
)
from services.bus.port import Stored
from services.pool_manager.planner.announced_restarts import RESTARTING

MARGIN: Final = timedelta(seconds=6)
"""A drain is cut short at most so long before the notice's deadline."""
HEARD: Final = timedelta(seconds=10)
"""After a withdrawal, a replica that has not processed it may still cut a drain for so long."""
REMOVAL_SECONDS_MAX: Final = 1_500.0
"""So long a saga waits at most for a machine to be removed, the capacity of a cloud with a fixed
number included; a service may crash or stall meanwhile, several times."""


@dataclass(slots=True)
class _Notice:
    deadline: datetime | None
    cuts: bool
    """Whether it ends drains: the cloud takes the node, or says when it restarts it."""
    withdrawn_at: datetime | None = None


@dataclass(slots=True)
class AnnouncedNotices:
    """Holds the notices of all nodes.

    While a notice is in force, the drain of its node ends shortly before the deadline. After the
    notice is withdrawn, the drain has its full time.
    """

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
        """Return whether a notice justifies ending a node's drain at a moment."""
        return any(
            each.cuts
            and (each.deadline is None or at >= each.deadline - MARGIN)
            and (each.withdrawn_at is None or at < each.withdrawn_at + HEARD)
            for each in self.nodes.get(node, {}).values()
        )


class NodeRemovals:
    """Collects what the sagas' logs contain about removals."""

    def __init__(self) -> None:
        self.by: dict[str, SagaStarted] = {}
        """Node -> the saga that removed it; the sweep may end its machine later."""
        self.writes_refused = False
        """Whether a stream has ever refused writes: sagas wait for that, too."""
        self._since: dict[str, datetime] = {}
        """Saga -> when it began to wait."""

    def overdue(self, entry: SagaEntry, at: datetime) -> str:
        """Return how an entry shows that a pool was short as a machine did not go; empty: not."""
        if getattr(entry, "step", "") != "terminate":
            return ""
        if isinstance(entry, StepStarted):
            self._since[entry.saga] = at
        elif isinstance(entry, StepSucceeded):
            lasted = (at - self._since.pop(entry.saga, at)).total_seconds()
            if lasted > REMOVAL_SECONDS_MAX and not self.writes_refused:
                return f"{entry.saga} waited {lasted:.0f} s for its machine to go"
        return ""


@dataclass(slots=True)
class TrackedSagas:
    """Every saga that began."""

    open: dict[str, SagaStarted] = field(default_factory=dict)
    """Sagas that have begun and not ended, by their logs."""
    about: dict[str, dict[str, None]] = field(default_factory=dict)
    """Node -> the open sagas that act on it or bring it."""
    vanished: dict[str, SagaStarted] = field(default_factory=dict)
    """Sagas whose logs were lost; an action of theirs may be under way still."""
    cut_short: dict[str, SagaStarted] = field(default_factory=dict)
    """Sagas that ended, and whose logs lost their ends; the records have them."""
    _ended: set[str] = field(default_factory=set)
    _promoted: set[str] = field(default_factory=set)
    """Sagas whose logs say that their spare is a node like any other."""

    def begin(self, entry: SagaStarted) -> None:
        """Add a saga whose log begins."""
        self.open[entry.saga] = entry
        promoted = {entry.params.promotes} if entry.saga in self._promoted else set()
        for node in sorted(nodes_of(entry) - promoted):
            self.about.setdefault(node, {})[entry.saga] = None

    def promote(self, saga: str) -> None:
        """The spare that a saga promotes is a node like any other from now on."""
        self._promoted.add(saga)
        self._release(self.started(saga).params.promotes, saga)

    def end(self, entry: SagaDone | SagaUnwound) -> SagaStarted | None:
        """Take a saga as ended; return how it began, where it was open."""
        self._ended.add(entry.saga)
        self.cut_short.pop(entry.saga, None)
        ended = self.open.pop(entry.saga, None)
        if ended is not None:
            for node in nodes_of(ended):
                self._release(node, entry.saga)
        return ended

    def started(self, saga: str) -> SagaStarted:
        """Return how a saga began, even if its log is lost."""
        return self.open.get(saga) or self.cut_short.get(saga) or self.vanished[saga]

    def acting_on(self, node: str) -> list[SagaStarted]:
        """The sagas that may be acting on a node: open, or with a lost log."""
        return [self.started(each) for each in (*self.about.get(node, ()), *self.vanished)]

    def set_back(self, messages: Iterable[Stored], *, recorded: bool) -> None:
        """SAGAS was lost or set back to these; `recorded`: the records say what has ended."""
        self.vanished |= self.open
        for each in (self.open, self.about, self._promoted):
            each.clear()
        for stored in messages:
            entry = saga_codec.decode(stored.data)
            if isinstance(entry, SagaStarted) and entry.saga in self._ended and recorded:
                self.cut_short[entry.saga] = entry
            elif isinstance(entry, SagaStarted):
                self.begin(entry)
            elif isinstance(entry, SagaDone | SagaUnwound):
                self.end(entry)
            elif isinstance(entry, StepSucceeded) and entry.step == "promote":
                self.promote(entry.saga)

    def restored(self) -> None:
        """Everything was set back: by the records, too, what was cut short is open."""
        for each in self.cut_short.values():
            self.begin(each)
        self._ended -= self.cut_short.keys()
        self.cut_short.clear()

    def _release(self, node: str, saga: str) -> None:
        self.about.get(node, {}).pop(saga, None)


def nodes_of(saga: SagaStarted) -> set[str]:
    """The nodes that no other saga may be about meanwhile."""
    return {saga.params.node, saga.params.new_node, saga.params.promotes} - {""}
