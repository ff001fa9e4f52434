"""The sagas of a simulation, as their logs have had them: open, ended, lost, or cut short. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.saga_log_entries import (
    SagaDone,
    SagaStarted,
    SagaUnwound,
    StepSucceeded,
    saga_codec,
)
from services.bus.port import Stored


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
        """How a saga began, even if its log is lost."""
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
