"""AWS: spot interruptions, rebalance recommendations, scheduled events, through IMDSv2.

Every request carries a session token, which a PUT returns and which is renewed when it is refused.
404 means that there is no notice.
"""

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from agent.observations import Notice
from agent.sources.cloud.metadata_http import MetadataReply, MetadataUnavailable, fetch
from agent.sources.cloud.notice_parsers import aws_rebalance, aws_scheduled, aws_spot, read

BASE: Final = "http://169.254.169.254"
TOKEN_SECONDS: Final = 21_600
REQUEST_SECONDS_MAX: Final = 3.0
SCHEDULED_INTERVAL_SECONDS: Final = 60.0
"""Scheduled events are announced days ahead."""


class Imds:
    """Reads the instance metadata service, version 2."""

    def __init__(self, base: str = "") -> None:
        self._base = base.rstrip("/") or BASE
        self._token = ""
        self._asking = asyncio.Lock()

    async def get(self, path: str) -> bytes:
        """Read a path under latest/meta-data; empty where it does not exist now."""
        token = await self._valid_token(refused="")
        answer = await self._get(path, token)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            # The token expired, or the instance was started from a snapshot.
            answer = await self._get(path, await self._valid_token(refused=token))
        if answer.status == HTTPStatus.NOT_FOUND:
            return b""
        if answer.status != HTTPStatus.OK:
            raise MetadataUnavailable(f"{path}: answers with status {answer.status}")
        return answer.body

    async def _get(self, path: str, token: str) -> MetadataReply:
        return await fetch(
            f"{self._base}/latest/meta-data/{path}",
            headers={"X-aws-ec2-metadata-token": token},
            seconds=REQUEST_SECONDS_MAX,
        )

    async def _valid_token(self, *, refused: str) -> str:
        """The shared session token, renewed where this one was `refused`."""
        async with self._asking:
            if self._token in ("", refused):
                self._token = await self._new_token()
            return self._token

    async def _new_token(self) -> str:
        answer = await fetch(
            f"{self._base}/latest/api/token",
            method="PUT",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)},
            seconds=REQUEST_SECONDS_MAX,
        )
        token = answer.body.decode("ascii", "replace").strip()
        if answer.status != HTTPStatus.OK or not token.isprintable() or not token:
            raise MetadataUnavailable(f"no IMDSv2 token: status {answer.status}")
        return token


class _NoticeSource:
    def __init__(
        self, imds: Imds, path: str, interval: float, read: Callable[[bytes], Sequence[Notice]]
    ) -> None:
        self.name = f"AWS {path}"
        self.interval_seconds = interval
        self._imds = imds
        self._path = path
        self._read = read

    async def poll(self) -> Sequence[Notice]:
        """Poll once."""
        body = await self._imds.get(self._path)
        return read(body, self._read) if body.strip() else ()


def notice_sources(base: str, interval_seconds: float) -> list[_NoticeSource]:
    """Sources of AWS notices."""
    imds = Imds(base)
    seldom = max(interval_seconds, min(SCHEDULED_INTERVAL_SECONDS, interval_seconds * 12))
    return [
        _NoticeSource(imds, "spot/instance-action", interval_seconds, aws_spot),
        _NoticeSource(imds, "events/recommendations/rebalance", interval_seconds, aws_rebalance),
        _NoticeSource(imds, "events/maintenance/scheduled", seldom, aws_scheduled),
    ]
