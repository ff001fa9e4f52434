"""Where a pool's queue comes from: the contract of a MetricsSource, and the one over HTTP.

What the GPUs do is known from telemetry; how many jobs wait only the workload system knows. A
plugin is a class of this shape with an inner struct `Options`, found by entry point
(`navarch.metrics_sources`) or as `module:Class`, and constructed with `options=`.
"""

from typing import Annotated, Final, Protocol

import httpx
import msgspec

from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from services.primitives.redaction import public_url
from services.runtime.bounded_http import bounded_client, failure_text, status_text

ANSWER_BYTES_MAX: Final = 65_536


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a source knows; None: it does not."""

    pending_jobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Waiting for nodes."""
    queue_depth: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Waiting or running."""
    utilization: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    """In percent; takes the place of what telemetry says."""


class SourceError(Exception):
    """A source cannot say anything now."""


class MetricsSource(Protocol):
    """Knows how a pool is used."""

    async def load(self, pool: str) -> Load:
        """Ask; SourceError where there is no answer. Bounded in time by the caller as well."""
        ...

    async def close(self) -> None:
        """Give back what is held."""
        ...


class HttpSource:
    """Asks a URL, which answers `{"pending_jobs": 3, "queue_depth": 12}`."""

    class Options(Setting, frozen=True, kw_only=True):
        """What the configuration may say."""

        url: SecretText
        """`pool=<pool>` is added to its query."""
        headers: dict[str, SecretText] = msgspec.field(default_factory=dict)
        timeout: Duration = Duration(10)

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
