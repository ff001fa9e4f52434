"""A simulated cloud lists its machines, and answers launches, under these IDs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Spelling = Literal["", "case", "form", "unknown", "swapped"]
"""case, form: another way to write the ID; unknown: another ID; swapped: another machine's."""
WrongAnswer = Literal["unknown", "borrowed"]
"""unknown: an ID that no machine has; borrowed: another machine's."""
SPELLINGS: Final[tuple[Spelling, ...]] = ("case", "form", "unknown", "swapped")
ANSWERS: Final[tuple[WrongAnswer, ...]] = ("unknown", "borrowed")
LIED_SECONDS: Final = 60.0
"""So long after an empty list what was concluded from it may be recorded."""


@dataclass(slots=True)
class ListedIds:
    """The faults say what a cloud's lists and answers do with IDs, until each moment."""

    spelling: Spelling = ""
    spelled_until: float = 0.0
    swapped: dict[str, str] = field(default_factory=dict)
    """Machine -> the ID of another one, as they were when the spelling began."""
    twice_until: float = 0.0
    """Lists show each machine twice."""
    empty_until: float = 0.0
    """Lists succeed, and show nothing."""
    answers: list[WrongAnswer] = field(default_factory=list)
    """To the next launches."""

    def spell(self, spelling: Spelling, ids: Sequence[str], until: float) -> None:
        """List machines under other IDs until then."""
        self.spelling, self.spelled_until = spelling, until
        self.swapped = {each: ids[at - 1] for at, each in enumerate(ids)}

    def listed(self, ids: Sequence[str], now: float) -> dict[str, str]:
        """Return each machine's ID, and the one under which it is listed now."""
        spelling = self.spelling if now < self.spelled_until else ""
        return {each: self._spelled(spelling, each) for each in ids}

    def real(self, provider_id: str, ids: Sequence[str], now: float) -> str:
        """Return the machine that an ID means now; an ID that is not listed means itself.

        Lists that swap IDs are wrong: each ID goes on to mean its own machine.
        """
        if self.spelling == "swapped":
            return provider_id
        found = {shown: each for each, shown in self.listed(ids, now).items()}
        return found.get(provider_id, "" if provider_id in ids else provider_id)

    def answer(self, made: str, ids: Sequence[str]) -> str:
        """Return the ID with which a launch is answered."""
        if not self.answers:
            return made
        others = [each for each in ids if each != made]
        if self.answers.pop(0) == "borrowed" and others:
            return others[0]
        return f"unknown-{made}"

    def end(self) -> None:
        """Answer and list as it should be from now on."""
        self.spelled_until = self.twice_until = self.empty_until = 0.0
        self.answers.clear()

    def lied(self, now: float) -> bool:
        """Return whether an absence may have been concluded from a list that showed nothing."""
        return bool(self.empty_until) and now < self.empty_until + LIED_SECONDS

    def _spelled(self, spelling: Spelling, real: str) -> str:
        match spelling:
            case "case":
                return real.upper()
            case "form":
                return f"arn:sim:instance/{real}"
            case "unknown":
                return f"other-{real}"
            case "swapped":
                return self.swapped.get(real, real)
            case "":
                return real
