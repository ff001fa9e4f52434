"""Collects the problems of a configuration, so that all are reported at once. Pure."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from services.primitives.errors import ConfigurationError, ConfigurationErrors

PROBLEMS_MAX: Final = 100


class ProblemList:
    """Collects what is wrong so far; of one place only the first problem counts."""

    def __init__(self) -> None:
        self.found: list[ConfigurationError] = []
        self._places: set[tuple[str, int, str]] = set()

    def add(self, error: ConfigurationError) -> None:
        """Keep a problem, or all of several."""
        for each in error.errors:
            place = (each.file, each.line, each.key)
            if place not in self._places:
                self._places.add(place)
                self.found.append(each)

    def extend(self, errors: Iterable[ConfigurationError]) -> None:
        """Keep them all."""
        for each in errors:
            self.add(each)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep what is raised within, and go on after it."""
        try:
            yield
        except ConfigurationError as error:
            self.add(error)

    def raise_found(self) -> None:
        """Raise what is wrong, ordered by line."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            raise ConfigurationErrors(sorted(self.found, key=lambda each: each.line)[:PROBLEMS_MAX])
