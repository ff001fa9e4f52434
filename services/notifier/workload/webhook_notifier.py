"""A workload system behind HTTP: one URL each for cordon, uncordon, drain and drain status.

Orders are POSTs of `{"event", "node_id", "reason", "timestamp"}` with an `Idempotency-Key`; the
status is a GET with `?node_id=` that answers `{"drained": true, "message": "…"}`. Any 2xx is
success. A transient failure (no connection, time-out, 408, 425, 429, 5xx) is retried here with
back-off until the step's deadline; any other answer fails the step. Errors name the setting, host
and status; the URL's other parts and the answer's body may hold secrets and are never shown.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC
from typing import Final, Literal, TypeVar

import httpx
import msgspec
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    wait_exponential,
)

from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from services.notifier.workload.workload_notifier import StepFailure
from services.primitives.clock import Clock
from services.primitives.redaction import public_url
from services.runtime.bounded_http import bounded_client, failure_text, status_text
from services.runtime.tracing import current_headers

log = logging.getLogger(__name__)

T = TypeVar("T")

TRANSIENT_CODES: Final = frozenset({408, 425, 429})
"""Request time-out, too early, too many requests: the only 4xx worth a retry."""
BACKOFF_FIRST_SECONDS: Final = 0.1
BACKOFF_MAX_SECONDS: Final = 10.0
STATUS_BACKOFF_MAX_SECONDS: Final = 1.0
"""Lower, so that a saga continues within a second of the drain after a scheduler outage too."""
CONNECTIONS_MAX: Final = 128
STATUS_BYTES_MAX: Final = 1_048_576


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a POST."""

    event: str
    node_id: str
    reason: str = ""
    timestamp: str


class DrainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Body of the status URL's answer."""

    drained: bool
    message: str = ""


_status = msgspec.json.Decoder(DrainStatus)


class _TransientError(Exception):
    """No answer, or an answer that a retry may change."""


class WebhookDrain(Setting, frozen=True, kw_only=True):
    """When a drain has ended."""

    completes: Literal["when-reported", "at-once"] = "when-reported"
    """when-reported: when `drain_status_url` says so; at-once: when the order was accepted,
    whatever still runs on the node."""


class WebhookNotifier:
    """A workload system behind URLs; an order without a URL is skipped."""

    class Options(Setting, frozen=True, kw_only=True):
        """`notifier: {type: webhook, webhook: {cordon_url: …}}`."""

        cordon_url: SecretText = ""
        uncordon_url: SecretText = ""
        drain_url: SecretText = ""
        drain_status_url: SecretText = ""
        drain: WebhookDrain = WebhookDrain()
        timeout: Duration = Duration(30)
        """For one request, from connecting to the last byte."""
        headers: dict[str, SecretText] = {}  # noqa: RUF012 - msgspec copies it

        def __post_init__(self) -> None:
            """Refuse URLs and time-outs that can never work."""
            for name in ("cordon_url", "uncordon_url", "drain_url", "drain_status_url"):
                _check_url(name, getattr(self, name))
            if self.timeout <= 0:
                raise ValueError("timeout must be more than 0 (30s is the default)")
            at_once = self.drain.completes == "at-once"
            if not self.drain_status_url and not at_once:
                raise ValueError(
                    "`drain_status_url` is missing, so nothing would report whether work is left "
                    "on a node; add it, or terminate nodes without asking: "
                    "`drain: {completes: at-once}`"
                )
            if self.drain_status_url and at_once:
                raise ValueError(
                    "`drain_status_url` and `drain: {completes: at-once}` exclude each other; "
                    "remove one"
                )

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Make the client; it connects at the first request."""
        self._options = options
        self._clock = clock
        limits = httpx.Limits(
            max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX
        )
        # httpx limits only the phases of a request; `_send` limits the whole request.
        self._client = bounded_client(
            bytes_max=STATUS_BYTES_MAX,
            headers=options.headers,
            timeout=None,
            limits=limits,
        )

    @property
    def name(self) -> str:
        """The name in logs."""
        return "webhook"

    @property
    def confirms_drains(self) -> bool:
        """Whether there is a status URL."""
        return bool(self._options.drain_status_url)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def cordon(self, node: str, reason: str, *, idempotency_key: str) -> None:
        """POST `cordon`."""
        await self._order("cordon", self._options.cordon_url, node, reason, idempotency_key)

    async def uncordon(self, node: str, *, idempotency_key: str) -> None:
        """POST `uncordon`."""
        await self._order("uncordon", self._options.uncordon_url, node, "", idempotency_key)

    async def drain(self, node: str, reason: str, *, idempotency_key: str) -> None:
        """POST `drain`."""
        await self._order("drain", self._options.drain_url, node, reason, idempotency_key)

    async def is_drained(self, node: str) -> bool:
        """GET the status."""
        target = httpx.URL(self._options.drain_status_url).copy_merge_params({"node_id": node})

        async def read_status() -> DrainStatus:
            request = self._client.build_request("GET", target)
            response = await self._send(request, "drain_status_url")
            try:
                return _status.decode(response.content)
            except msgspec.DecodeError as error:
                where = _place("drain_status_url", request)
                raise StepFailure(
                    f"{where}: not a drain status: {error} ({_size(response)})", "INVALID"
                ) from error

        status = await self._retry(
            read_status, f"drain status of {node}", STATUS_BACKOFF_MAX_SECONDS
        )
        if not status.drained and status.message:
            log.debug("not drained yet", extra={"node": node, "answer": status.message})
        return status.drained

    async def _order(self, event: str, url: str, node: str, reason: str, key: str) -> None:
        if not url:
            log.info(
                "no %s_url is configured: the workload system is not notified",
                event,
                extra={"node": node},
            )
            return
        now = self._clock.now().astimezone(UTC).isoformat(timespec="seconds")
        body = Order(event=event, node_id=node, reason=reason, timestamp=now.replace("+00:00", "Z"))
        request = self._client.build_request(
            "POST",
            url,
            content=msgspec.json.encode(body),
            headers={
                **current_headers(),
                "Content-Type": "application/json",
                "Idempotency-Key": key,
            },
        )

        async def send() -> httpx.Response:
            return await self._send(request, f"{event}_url")

        await self._retry(send, f"{event} {node}", BACKOFF_MAX_SECONDS)
        log.info("notified the workload system", extra={"event": event, "node": node, "key": key})

    async def _send(self, request: httpx.Request, setting: str) -> httpx.Response:
        """Send once; return a 2xx, raise _TransientError or StepFailure for anything else."""
        where = _place(setting, request)
        try:
            async with asyncio.timeout(self._options.timeout):
                response = await self._client.send(request)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _TransientError(f"{where}: {failure_text(error)}") from error
        if response.is_success:
            return response
        problem = f"{where}: {status_text(response.status_code)} ({_size(response)})"
        if response.is_server_error or response.status_code in TRANSIENT_CODES:
            raise _TransientError(problem)
        if response.is_redirect:
            problem += " (redirects are not followed: configure the final URL)"
        raise StepFailure(problem, "INVALID")

    async def _retry(
        self, call: Callable[[], Awaitable[T]], what: str, backoff_max_seconds: float
    ) -> T:
        """Retry transient failures; the step's deadline cancels this call."""

        def log_retry(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            log.warning(
                "the workload system did not answer or is busy; retrying",
                extra={"what": what, "tries": state.attempt_number, "reason": str(error)},
            )

        attempts = AsyncRetrying(
            retry=retry_if_exception_type(_TransientError),
            wait=wait_exponential(multiplier=BACKOFF_FIRST_SECONDS, max=backoff_max_seconds),
            sleep=self._clock.sleep,
            before_sleep=log_retry,
            reraise=True,
        )
        return await attempts(call)


def _check_url(name: str, value: str) -> None:
    if not value:
        return
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{name} is not a URL: write http://host/path or https://…")


def _place(setting: str, request: httpx.Request) -> str:
    return f"{request.method} {setting} ({public_url(str(request.url))})"


def _size(response: httpx.Response) -> str:
    """How long the answer is; its text is in the workload system's own log."""
    return f"{len(response.content)} bytes, not shown: see the workload system's log"
