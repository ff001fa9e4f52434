"""Polls a metadata service and reports new and withdrawn notices.

A service that does not answer is polled less often and logged once, since a host may have none.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from agent.observations import Notice
from agent.sources.cloud.metadata_http import MetadataUnavailable
from agent.sources.cloud.notice_parsers import UnreadableNotice
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

RETRY_SECONDS_MAX: Final = 60.0


class NoticeSource(Protocol):
    """Describes one metadata path with notices."""

    name: str
    interval_seconds: float

    async def poll(self) -> Sequence[Notice]:
        """Current notices; MetadataUnavailable or UnreadableNotice: unknown."""


class NoticeWatcher:
    """Polls for notices until cancelled."""

    def __init__(
        self,
        notice_sources: Iterable[NoticeSource],
        clock: Clock,
        *,
        published: Iterable[str],
        on_notice: Callable[[Notice], None],
        on_over: Callable[[str], None],
    ) -> None:
        """Report each notice once, and its digest when it is withdrawn.

        Notices `published` by an earlier run are not reported again.
        """
        self._sources = tuple(notice_sources)
        self._clock = clock
        self._on_notice = on_notice
        self._on_over = on_over
        self._published_before = frozenset(published)
        self._announced: dict[str, frozenset[str]] = {}

    @property
    def announced(self) -> tuple[str, ...]:
        """Digests of current notices that were published."""
        looked = frozenset().union(*self._announced.values())
        # Notices of sources not polled yet may still be current.
        old = self._published_before if len(self._announced) < len(self._sources) else frozenset()
        return tuple(sorted(looked | old))

    async def run(self) -> None:
        """Poll every source."""
        async with asyncio.TaskGroup() as group:
            for each in self._sources:
                group.create_task(self._poll(each))
            await asyncio.Event().wait()

    async def _poll(self, source: NoticeSource) -> None:
        pause = source.interval_seconds
        silent = False
        while True:
            try:
                notices = await source.poll()
            except (MetadataUnavailable, UnreadableNotice) as error:
                if not silent:
                    log.warning("%s: %s", source.name, error)
                silent = True
                pause = min(max(pause, 1.0) * 2, RETRY_SECONDS_MAX)
            else:
                if silent:
                    log.info("%s answers again", source.name)
                silent, pause = False, source.interval_seconds
                self._publish_new(source.name, notices)
            await self._clock.sleep(pause)

    def _publish_new(self, name: str, notices: Sequence[Notice]) -> None:
        published = self._announced.get(name, self._published_before)
        for notice in notices:
            if notice.digest not in published:
                self._on_notice(notice)
        now = frozenset(notice.digest for notice in notices)
        over = self._announced.get(name, frozenset()) - now
        self._announced[name] = now
        if len(self._announced) == len(self._sources):
            # All sources were polled: these notices of an earlier run are no longer announced.
            over |= self._published_before - frozenset().union(*self._announced.values())
            self._published_before = frozenset()
        if over:
            log.info("%s: %s notices are withdrawn or over", name, len(over))
        for digest in sorted(over):
            self._on_over(digest)
