"""How many dead letters one sender may cause; what is beyond is counted and summarised. Pure."""

from dataclasses import dataclass, field
from typing import Final

from services.bus.port import Stored

LETTERS_MAX: Final = 20
"""Of one sender, within the window."""
ALL_LETTERS_MAX: Final = 1_000
"""Of all senders of one durable, within the window."""
WINDOW_SECONDS: Final = 600.0
SUMMARY_SECONDS: Final = 10.0
"""How often a summary is written while there is something to summarise."""


@dataclass(slots=True)
class WithheldLetters:
    """Messages of one sender that have no letter of their own."""

    sender: str
    last: Stored
    reason: str
    count: int = 1


@dataclass(slots=True)
class DeadLetterQuota:
    """The letters of one durable."""

    _began: float = 0.0
    _letters: dict[str, int] = field(default_factory=dict)
    """Sender -> its letters within this window."""
    _written: int = 0
    _withheld: dict[str, WithheldLetters] = field(default_factory=dict)

    def admit(self, sender: str, stored: Stored, reason: str, now: float) -> bool:
        """Whether this message gets a letter of its own; otherwise it is counted."""
        if now - self._began >= WINDOW_SECONDS:
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
        """What is to be summarised; it is no longer kept here."""
        found = list(self._withheld.values())
        self._withheld = {}
        return found

    def give_back(self, letters: WithheldLetters) -> None:
        """Count again what could not be summarised yet."""
        known = self._withheld.setdefault(letters.sender, letters)
        if known is not letters:
            known.count += letters.count
