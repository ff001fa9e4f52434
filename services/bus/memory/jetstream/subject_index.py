"""Sequences by subject, found by a literal subject or by a wildcard. Pure.

A tree of tokens, so that the guard of one saga's log looks at that log alone, however many others
there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from services.bus.protocol.subject_filters import ANY, REST


@dataclass(slots=True)
class _Branch:
    """What is stored under one token."""

    under: dict[str, "_Branch"] = field(default_factory=dict)
    sequences: dict[int, None] = field(default_factory=dict)
    """Of the subject that ends here, oldest first."""
    newest: int | None = 0
    """The newest sequence here and below; None: it was removed, and must be looked for."""

    def last(self) -> int:
        """The newest sequence here and below; 0: none."""
        if self.newest is None:
            here = next(reversed(self.sequences), 0)
            self.newest = max(here, *(each.last() for each in self.under.values()))
        return self.newest


class SubjectIndex:
    """The sequences stored under each subject."""

    def __init__(self) -> None:
        self._root = _Branch()

    def add(self, subject: str, sequence: int) -> dict[int, None]:
        """Note a stored message; return all of its subject, oldest first."""
        branch = self._root
        branch.newest = sequence
        for token in subject.split("."):
            found = branch.under.get(token)
            if found is None:
                found = branch.under[token] = _Branch()
            branch = found
            branch.newest = sequence
        branch.sequences[sequence] = None
        return branch.sequences

    def remove(self, subject: str, sequence: int) -> None:
        """Forget a message, and the branch where it was the last."""
        path = [self._root]
        tokens = subject.split(".")
        for token in tokens:
            path.append(path[-1].under[token])
        path[-1].sequences.pop(sequence, None)
        for branch in path:
            if branch.newest == sequence:
                branch.newest = None
        for token, branch in zip(reversed(tokens), reversed(path[:-1]), strict=True):
            last = branch.under[token]
            if last.sequences or last.under:
                return
            del branch.under[token]

    def of(self, filter_: str) -> Iterator[dict[int, None]]:
        """The sequences of each subject that a filter names, subject by subject."""
        return _find(self._root, filter_.split("."), 0)

    def last(self, filter_: str) -> int:
        """The newest sequence under a filter, 0 where there is none."""
        return _last(self._root, filter_.split("."), 0)


def _find(branch: _Branch, tokens: list[str], place: int) -> Iterator[dict[int, None]]:
    while place < len(tokens) and tokens[place] not in (ANY, REST):
        found = branch.under.get(tokens[place])
        if found is None:
            return
        branch, place = found, place + 1
    if place == len(tokens):
        if branch.sequences:
            yield branch.sequences
    elif tokens[place] == ANY:
        for each in branch.under.values():
            yield from _find(each, tokens, place + 1)
    else:
        for each in branch.under.values():
            yield from _everything(each)


def _last(branch: _Branch, tokens: list[str], place: int) -> int:
    while place < len(tokens) and tokens[place] not in (ANY, REST):
        found = branch.under.get(tokens[place])
        if found is None:
            return 0
        branch, place = found, place + 1
    if place == len(tokens):
        return next(reversed(branch.sequences), 0)
    if tokens[place] == ANY:
        return max((_last(each, tokens, place + 1) for each in branch.under.values()), default=0)
    if branch.sequences:
        # `>` is one token or more: what ends here is not meant.
        return max((each.last() for each in branch.under.values()), default=0)
    return branch.last()


def _everything(branch: _Branch) -> Iterator[dict[int, None]]:
    if branch.sequences:
        yield branch.sequences
    for each in branch.under.values():
        yield from _everything(each)
