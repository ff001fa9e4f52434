"""Google Cloud: preemption and host maintenance, by long polls.

The first poll returns at once; each further one names the last reply's ETag and waits for a
change. A reply without `Metadata-Flavor: Google` is not from the metadata service.
"""

from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote

from agent.observations import Notice
from agent.sources.cloud.metadata_http import MetadataUnavailable, fetch_ok
from agent.sources.cloud.notice_parsers import gcp_maintenance, gcp_preempted
from services.primitives.clock import Clock

BASE: Final = "http://169.254.169.254"
FLAVOR: Final = {"Metadata-Flavor": "Google"}
WAIT_SECONDS: Final = 60
ANSWER_SECONDS_MAX: Final = 5.0
"""How long a reply may take beyond the requested wait."""


class _NoticeSource:
    def __init__(
        self, base: str, path: str, clock: Clock, read: Callable[[str], Sequence[Notice]]
    ) -> None:
        self.name = f"Google Cloud {path}"
        self.interval_seconds = 0.0
        self._url = f"{base.rstrip('/') or BASE}/computeMetadata/v1/instance/{path}"
        self._clock = clock
        self._read = read
        self._etag = ""

    async def poll(self) -> Sequence[Notice]:
        """Wait for the next answer."""
        url, seconds = self._url, ANSWER_SECONDS_MAX
        if self._etag:
            url += f"?wait_for_change=true&timeout_sec={WAIT_SECONDS}&last_etag={quote(self._etag)}"
            seconds += WAIT_SECONDS
        etag, self._etag = self._etag, ""
        answer = await fetch_ok(url, headers=FLAVOR, seconds=seconds)
        if answer.headers.get("metadata-flavor") != "Google":
            raise MetadataUnavailable(f"{self._url}: answers without Metadata-Flavor: Google")
        self._etag = answer.headers.get("etag", "")
        if not self._etag:
            raise MetadataUnavailable(f"{self._url}: answers without an ETag")
        if self._etag == etag:
            # The wait expired. A server that does not wait must not be polled in a tight loop.
            await self._clock.sleep(1.0)
        return self._read(answer.body.decode("utf-8", "replace").strip())


def notice_sources(base: str, clock: Clock) -> list[_NoticeSource]:
    """Sources of Google Cloud notices."""
    return [
        _NoticeSource(base, "preempted", clock, lambda value: gcp_preempted(value, clock.now())),
        _NoticeSource(
            base, "maintenance-event", clock, lambda value: gcp_maintenance(value, clock.now())
        ),
    ]
