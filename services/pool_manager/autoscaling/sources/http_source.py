"""A queue behind a URL of the owner."""

from typing import Final

import httpx
import msgspec

from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from services.pool_manager.autoscaling.metrics_sources import Load, SourceError
from services.primitives.redaction import public_url
from services.runtime.bounded_http import bounded_client, failure_text, status_text

ANSWER_BYTES_MAX: Final = 1_048_576


class HttpSource:
    """Asks a URL, which answers `{"pending_jobs": 3, "queue_depth": 12}`."""

    class Options(Setting, frozen=True, kw_only=True):
        """What the configuration may say."""

        url: SecretText
        """`pool=<pool>` is added to its query."""
        headers: dict[str, SecretText] = msgspec.field(default_factory=dict)
        """HTTP headers of every request, such as Authorization."""
        timeout: Duration = Duration(10)
        """For one request."""

    def __init__(self, *, options: Options) -> None:
        """Ask as the options say; nothing is opened yet."""
        self._url = options.url
        self._where = f"metrics.url ({public_url(options.url)})"
        self._client = bounded_client(
            bytes_max=ANSWER_BYTES_MAX, headers=options.headers, timeout=float(options.timeout)
        )

    async def load(self, pool: str) -> Load:
        """Ask once; the next interval asks again."""
        try:
            url = httpx.URL(self._url).copy_merge_params({"pool": pool})
            response = await self._client.get(url)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceError(f"{self._where}: {failure_text(error)}") from error
        if not response.is_success:
            raise SourceError(f"{self._where}: {status_text(response.status_code)}")
        try:
            return msgspec.json.decode(response.content, type=Load)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SourceError(f"{self._where} answers no load: {error}") from error

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()
