"""Reads a queue from a URL of the owner."""

import msgspec

from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from services.pool_manager.autoscaling.metrics_sources import Load, SourceError
from services.pool_manager.autoscaling.sources.source_http import SourceHttp
from services.runtime.bounded_http import status_text


class HttpSource:
    """Asks a URL, which answers `{"pending_jobs": 3, "queue_depth": 12}`."""

    class Options(Setting, frozen=True, kw_only=True):
        """Options of `http` in the configuration say where the queue is read."""

        url: SecretText
        """`pool=<pool>` is added to its query."""
        headers: dict[str, SecretText] = msgspec.field(default_factory=dict)
        """HTTP headers of every request, such as Authorization."""
        timeout: Duration = Duration(10)
        """For one request."""

    def __init__(self, *, options: Options) -> None:
        """Ask as the options say; nothing is opened yet."""
        self._http = SourceHttp(options.url, options.headers, float(options.timeout))

    async def load(self, pool: str) -> Load:
        """Ask once; the next interval asks again."""
        response = await self._http.ask("GET", self._http.url().copy_merge_params({"pool": pool}))
        if not response.is_success:
            raise SourceError(f"{self._http.where}: {status_text(response.status_code)}")
        try:
            return msgspec.json.decode(response.content, type=Load)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SourceError(f"{self._http.where} answers no load: {error}") from error

    async def close(self) -> None:
        """Close its connections."""
        await self._http.close()
