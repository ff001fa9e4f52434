"""Follows the logs of agents and services: asks again and again, and yields what is new."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from schemas.log_excerpts import LINES_MAX, LogExcerpt, LogRequest
from services.cli import console
from services.primitives.errors import NavarchError

POLL_SECONDS: Final = 2.0
"""A process answers ten requests within five seconds, of all operators together."""
OVERLAP_SECONDS: Final = 30.0
"""So much later than others a line may be kept whose time is before theirs: of the kernel's."""

Excerpts = tuple[LogExcerpt, ...]
Ask = Callable[[LogRequest], Awaitable[Excerpts]]


class LinesShown:
    """Remembers which lines were shown of the newest OVERLAP_SECONDS."""

    def __init__(self) -> None:
        """Nothing was shown yet."""
        self._shown: Counter[tuple[str, datetime, str]] = Counter()
        self.since: datetime | None = None
        """From when on lines are asked for; None: nothing was shown."""

    def unshown(self, excerpts: Sequence[LogExcerpt]) -> Excerpts:
        """The excerpts with the lines that were not shown, which count as shown from now on."""
        left = self._shown.copy()
        found = []
        for each in excerpts:
            lines = []
            for line in each.lines:
                key = (each.source, line.time, line.text)
                if left[key] > 0:
                    left[key] -= 1
                else:
                    lines.append(line)
                    self._shown[key] += 1
            found.append(replace(each, lines=tuple(lines)))
        if times := [line.time for each in excerpts for line in each.lines]:
            since = max(times) - timedelta(seconds=OVERLAP_SECONDS)
            self.since = since if self.since is None else max(self.since, since)
            kept = {key: n for key, n in self._shown.items() if key[1] >= self.since}
            self._shown = Counter(kept)
        return tuple(found)


async def follow_lines(
    ask: Ask, request: LogRequest, poll_seconds: float = POLL_SECONDS
) -> AsyncGenerator[Excerpts, None]:
    """Yield the lines that a request asks for, and later ones as they come.

    A process that does not answer any more is asked again: it may be restarting.
    """
    shown, said = LinesShown(), ""
    yield shown.unshown(await ask(request))
    while True:
        await asyncio.sleep(poll_seconds)
        since = shown.since or request.since
        try:
            found = await ask(replace(request, lines=LINES_MAX, since=since))
        except NavarchError as error:
            if said != (said := str(error)):
                console.note(f"{said}; it is asked again")
            continue
        said = ""
        if new := tuple(each for each in shown.unshown(found) if each.lines):
            yield new
