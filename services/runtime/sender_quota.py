"""Limits how many messages and dead letters of one sender are processed. Pure.

Within a window a number of equal messages of each sender passes, and a number of all its messages.
Beyond these a message passes only if it is more serious than every other that did; the rest is
counted.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from services.bus.port import Stored

LETTERS_MAX: Final = 20
"""Of one sender, within the window."""
ALL_LETTERS_MAX: Final = 1_000
"""Of all senders of one durable, within the window."""
LETTERS_SECONDS: Final = 600.0
SUMMARY_SECONDS: Final = 10.0
"""How often a summary is written while there is something to summarise."""
EQUAL_MAX: Final = 20
"""Messages of one sender with the same signature within a window. An agent sends half as many."""
SENDER_MAX: Final = 500
"""Messages of one sender within a window."""
WINDOW_SECONDS: Final = 60.0


@dataclass(slots=True)
class WithheldLetters:
    """Messages of one sender that have no letter of their own."""

    sender: str
    last: Stored
    reason: str
    count: int = 1


@dataclass(slots=True)
class DeadLetterQuota:
    """Limits the dead letters of one durable."""

    _began: float = 0.0
    _letters: dict[str, int] = field(default_factory=dict)
    """Sender -> its letters within this window."""
    _written: int = 0
    _withheld: dict[str, WithheldLetters] = field(default_factory=dict)

    def admit(self, sender: str, stored: Stored, reason: str, now: float) -> bool:
        """Return whether this message gets a letter of its own; otherwise it is counted."""
        if now - self._began >= LETTERS_SECONDS:
            self._began, self._written = now, 0
            self._letters.clear()
        if self._written >= ALL_LETTERS_MAX:
            sender = "many senders"
        elif self._letters.get(sender, 0) < LETTERS_MAX:
            self._letters[sender] = self._letters.get(sender, 0) + 1
            self._written += 1
            return True
        known = self._withheld.get(sender)
        if known is None:
            self._withheld[sender] = WithheldLetters(sender, stored, reason)
        else:
            known.last, known.reason, known.count = stored, reason, known.count + 1
        return False

    def take_withheld(self) -> list[WithheldLetters]:
        """Return what is to be summarised; it is no longer kept here."""
        found = list(self._withheld.values())
        self._withheld = {}
        return found

    def give_back(self, letters: WithheldLetters) -> None:
        """Count again what could not be summarised yet."""
        known = self._withheld.setdefault(letters.sender, letters)
        if known is not letters:
            known.count += letters.count


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderLimit:
    """Says what the quota needs to know of a consumer's messages."""

    signature: Callable[[Any], Hashable]
    """What equal messages have in common. None: not the sender's own message; it always passes, and
    the sender's quota begins again."""
    rank: Callable[[Any], int]
    """How serious a message is; 0: it may be withheld."""


@dataclass(slots=True)
class _Sender:
    passed: int = 0
    equal: dict[Hashable, int] = field(default_factory=dict)
    rank: int = 0
    """The most serious message that passed beyond the quota."""


@dataclass(slots=True)
class SenderQuota:
    """Limits what the senders of one durable have processed."""

    limit: SenderLimit
    began: float
    """When the current window began."""
    _senders: dict[str, _Sender] = field(default_factory=dict)
    _withheld: dict[str, int] = field(default_factory=dict)
    _withheld_before: dict[str, int] = field(default_factory=dict)
    """Of the window before this one."""

    def admit(self, sender: str, message: object) -> bool:
        """Return whether a message is to be processed; otherwise it is counted."""
        signature = self.limit.signature(message)
        if signature is None:
            self._senders.pop(sender, None)
            return True
        known = self._senders.setdefault(sender, _Sender())
        equal = known.equal.get(signature, 0)
        if equal < EQUAL_MAX and known.passed < SENDER_MAX:
            known.equal[signature] = equal + 1
            known.passed += 1
            return True
        if (rank := self.limit.rank(message)) > known.rank:
            known.rank = rank
            return True
        self._withheld[sender] = self._withheld.get(sender, 0) + 1
        return False

    def flooders(self, now: float) -> Mapping[str, int]:
        """Return how many messages of which senders were withheld in this window and the last.

        Begins the next window when this one is over.
        """
        if now - self.began >= WINDOW_SECONDS:
            self.began = now
            self._senders.clear()
            self._withheld_before, self._withheld = self._withheld, {}
        senders = {**self._withheld_before, **self._withheld}
        return {
            each: self._withheld_before.get(each, 0) + self._withheld.get(each, 0)
            for each in senders
        }
