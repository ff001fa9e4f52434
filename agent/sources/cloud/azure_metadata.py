"""Azure: Scheduled Events, of which evictions are one kind.

The list covers a whole placement group, so the VM's own name is read first. Events are never
acknowledged here: that would start them at once, before the node is drained.
"""

from collections.abc import Sequence
from typing import Final

from agent.observations import Notice
from agent.sources.cloud.metadata_http import fetch_ok
from agent.sources.cloud.notice_parsers import azure_events, read

BASE: Final = "http://169.254.169.254"
HEADERS: Final = {"Metadata": "true"}
EVENTS_PATH: Final = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
FIRST_SECONDS_MAX: Final = 130.0
"""The first request enables the service, which takes Azure up to two minutes."""
REQUEST_SECONDS_MAX: Final = 10.0


class _NoticeSource:
    name = "Azure scheduled events"

    def __init__(self, base: str, interval_seconds: float) -> None:
        self.interval_seconds = interval_seconds
        self._base = base.rstrip("/") or BASE
        self._vm = ""
        self._seconds_max = FIRST_SECONDS_MAX

    async def poll(self) -> Sequence[Notice]:
        """Poll once."""
        if not self._vm:
            name = await self._get(NAME_PATH, REQUEST_SECONDS_MAX)
            self._vm = name.decode("utf-8", "replace").strip()
        body = await self._get(EVENTS_PATH, self._seconds_max)
        self._seconds_max = REQUEST_SECONDS_MAX
        return read(body, lambda body: azure_events(body, self._vm))

    async def _get(self, path: str, seconds: float) -> bytes:
        return (await fetch_ok(self._base + path, headers=HEADERS, seconds=seconds)).body


def notice_sources(base: str, interval_seconds: float) -> list[_NoticeSource]:
    """Sources of Azure notices."""
    return [_NoticeSource(base, interval_seconds)]
