"""Asks a metadata service again and again, and tells what is newly announced.

A service that does not answer is asked less often, and said so once: a host may have none.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from agent.sources.cloud.metadata_http import MetadataUnavailable
from agent.sources.cloud.notice_parsers import Notice, UnreadableNotice
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

RETRY_SECONDS_MAX: Final = 60.0


class Look(Protocol):
    """One thing that a metadata service can be asked."""

    name: str
    interval_seconds: float

    async def look(self) -> Sequence[Notice]:
        """What is announced now; MetadataUnavailable or UnreadableNotice: not known."""
        ...


class CloudWatch:
    """Looks for notices for ever."""

    def __init__(
        self,
        looks: Iterable[Look],
        clock: Clock,
        *,
        told: Iterable[str],
        on_notice: Callable[[Notice], None],
        on_over: Callable[[str], None],
    ) -> None:
        """Tell each notice once, and by its digest when it stands no more.

        Those `told` by an earlier run are not told again.
        """
        self._looks = tuple(looks)
        self._clock = clock
        self._on_notice = on_notice
        self._on_over = on_over
        self._told_before = frozenset(told)
        self._standing: dict[str, frozenset[str]] = {}

    @property
    def standing(self) -> tuple[str, ...]:
        """Digests of what is announced now and has been told."""
        looked = frozenset().union(*self._standing.values())
        # What has not been looked at yet may stand still.
        old = self._told_before if len(self._standing) < len(self._looks) else frozenset()
        return tuple(sorted(looked | old))

    async def run(self) -> None:
        """Look."""
        async with asyncio.TaskGroup() as group:
            for each in self._looks:
                group.create_task(self._keep_looking(each))
            await asyncio.Event().wait()

    async def _keep_looking(self, look: Look) -> None:
        pause = look.interval_seconds
        silent = False
        while True:
            try:
                notices = await look.look()
            except (MetadataUnavailable, UnreadableNotice) as error:
                if not silent:
                    log.warning("%s: %s", look.name, error)
                silent = True
                pause = min(max(pause, 1.0) * 2, RETRY_SECONDS_MAX)
            else:
                if silent:
                    log.info("%s answers again", look.name)
                silent, pause = False, look.interval_seconds
                self._tell(look.name, notices)
            await self._clock.sleep(pause)

    def _tell(self, name: str, notices: Sequence[Notice]) -> None:
        told = self._standing.get(name, self._told_before)
        for notice in notices:
            if notice.digest not in told:
                self._on_notice(notice)
        now = frozenset(notice.digest for notice in notices)
        over = self._standing.get(name, frozenset()) - now
        self._standing[name] = now
        if len(self._standing) == len(self._looks):
            # All have been looked at: what an earlier run told and nobody announces any more.
            over |= self._told_before - frozenset().union(*self._standing.values())
            self._told_before = frozenset()
        if over:
            log.info("%s: %s notices are withdrawn or over", name, len(over))
        for digest in sorted(over):
            self._on_over(digest)
