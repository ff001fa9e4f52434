"""Requests to servers that the owner of the fleet runs or rents: workload systems, alert channels.

One request has one time limit, from connecting to the last byte, and its answer a size limit. No
connection, a time-out, 408, 425, 429 and 5xx are transient; any other answer beside a 2xx is a
refusal. Errors name the setting, host and status: the URL's other parts and the answer's body may
hold secrets and are never shown.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from services.primitives.backoff import retry_after_seconds
from services.primitives.clock import Clock
from services.primitives.redaction import public_url
from services.runtime.bounded_http import (
    bounded_client,
    failure_text,
    status_text,
)

log = logging.getLogger(__name__)

TRANSIENT_CODES: Final = frozenset({408, 425, 429})
"""Request time-out, too early, too many requests: the only 4xx worth a retry."""
BACKOFF_FIRST_SECONDS: Final = 0.1
ANSWER_BYTES_MAX: Final = 1_048_576
CONNECTIONS_MAX: Final = 128


class TransientHttpError(Exception):
    """No answer, or an answer that a retry may change."""

    def __init__(
        self, text: str, after_seconds: float = 0.0, answer: httpx.Response | None = None
    ) -> None:
        """Keep the answer, if there is one, and how long it asks to wait; 0: it does not say."""
        super().__init__(text)
        self.after_seconds = after_seconds
        self.answer = answer


class RefusedHttpError(Exception):
    """An answer that no retry changes."""

    def __init__(self, text: str, answer: httpx.Response) -> None:
        """Keep the answer; its body may hold secrets."""
        super().__init__(text)
        self.answer = answer


class HttpCaller:
    """A client whose requests have limits."""

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_seconds: float,
        headers: dict[str, str] | None = None,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        sign: Callable[[httpx.Request], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """Make the client; it connects at the first request, and sends `headers` with each.

        `sign`: headers of each try, which a receiver may refuse when they are old.
        """
        self._sign = sign
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        limits = httpx.Limits(
            max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX
        )
        # httpx limits only the phases of a request; `send` limits the whole request.
        self._client = bounded_client(
            bytes_max=answer_bytes_max, headers=headers or {}, timeout=None, limits=limits
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def request(self, method: str, url: str | httpx.URL, **parts: Any) -> httpx.Request:
        """Build a request; `parts` as of httpx."""
        return self._client.build_request(method, url, **parts)

    async def send(self, request: httpx.Request, setting: str) -> httpx.Response:
        """Send once; return a 2xx, raise TransientHttpError or RefusedHttpError for the rest.

        `setting` is where the URL is configured.
        """
        where = place(setting, request)
        request.headers.update(self._sign(request))
        try:
            async with asyncio.timeout(self._timeout_seconds):
                response = await self._client.send(request)
        except (httpx.HTTPError, TimeoutError) as error:
            raise TransientHttpError(f"{where}: {failure_text(error)}") from error
        if response.is_success:
            return response
        problem = f"{where}: {status_text(response.status_code)} ({size(response)})"
        if response.is_server_error or response.status_code in TRANSIENT_CODES:
            wait = retry_after_seconds(response.headers.get("Retry-After", ""))
            raise TransientHttpError(problem, wait, response)
        if response.is_redirect:
            problem += " (redirects are not followed: configure the final URL)"
        raise RefusedHttpError(problem, response)

    async def send_until_answered(
        self, request: httpx.Request, setting: str, about: str, *, backoff_max_seconds: float
    ) -> httpx.Response:
        """Retry transient failures until the caller is cancelled."""

        def log_retry(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            log.warning(
                "no answer, or the server is busy; retrying",
                extra={"about": about, "tries": state.attempt_number, "reason": str(error)},
            )

        attempts = AsyncRetrying(
            retry=retry_if_exception_type(TransientHttpError),
            wait=wait_exponential(multiplier=BACKOFF_FIRST_SECONDS, max=backoff_max_seconds),
            sleep=self._clock.sleep,
            before_sleep=log_retry,
            reraise=True,
        )
        return await attempts(self.send, request, setting)


def check_url(name: str, value: str) -> None:
    """Raise ValueError for a URL that can never be called; an empty one is not configured."""
    if not value:
        return
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{name} is not a URL: write http://host/path or https://…")


def place(setting: str, request: httpx.Request) -> str:
    """Return what was called, without what may be secret."""
    return f"{request.method} {setting} ({public_url(str(request.url))})"


def size(response: httpx.Response) -> str:
    """Say how long the answer is; its text is in the other server's own log."""
    return f"{len(response.content)} bytes, not shown: see the log of that server"
