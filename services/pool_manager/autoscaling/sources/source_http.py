"""Requests of the sources that ask over HTTP."""

from typing import Any, Final

import httpx

from services.pool_manager.autoscaling.metrics_sources import SourceError
from services.primitives.redaction import public_url
from services.runtime.bounded_http import bounded_client, failure_text

ANSWER_BYTES_MAX: Final = 1_048_576


class SourceHttp:
    """One server; nothing is opened before the first request."""

    def __init__(self, url: str, headers: dict[str, str], timeout_seconds: float) -> None:
        self.where = f"metrics.url ({public_url(url)})"
        self._url = url
        self._client = bounded_client(
            bytes_max=ANSWER_BYTES_MAX, headers=headers, timeout=timeout_seconds
        )

    def url(self) -> httpx.URL:
        """Return the URL as configured; SourceError where it is none."""
        try:
            return httpx.URL(self._url)
        except httpx.InvalidURL as error:
            raise SourceError(f"{self.where}: {failure_text(error)}") from error

    async def ask(self, method: str, url: httpx.URL, **parts: Any) -> httpx.Response:
        """Any answer; SourceError where there is none. `parts`: as of httpx."""
        try:
            return await self._client.request(method, url, **parts)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceError(f"{self.where}: {failure_text(error)}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
