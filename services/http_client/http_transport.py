"""Sends calls to a gateway: each within a time, repeated where that is safe, within limits.

No redirect is followed, so that the token goes to no other host. What comes from a proxy or another
program is an error that shows nothing of its text.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import cache
from http import HTTPStatus
from typing import Any, Final, TypeVar, cast

import httpx
import msgspec

from schemas.messages import LimitedDecoder, encode
from services.gateway.views import PROBLEM_TYPE, STREAM_TYPE, Problem
from services.http_client.api_call import (
    ApiCall,
    ApiStream,
    EventsResetError,
    GatewayError,
    NoAnswerError,
    gateway_error,
)
from services.http_client.server_options import CA_VARIABLE, SERVER_VARIABLE, ServerOptions
from services.http_client.server_sent_events import EventParser, SentEvent, StreamFormatError
from services.primitives.backoff import retry_after_seconds
from services.primitives.clock import Clock
from services.primitives.redaction import public_url
from services.runtime.bounded_http import (
    bounded_client,
    failure_text,
    status_text,
)

T = TypeVar("T")

ANSWER_BYTES_MAX: Final = 64 * 1_048_576
"""Ten thousand rows of a timeline are a tenth of it."""
CONNECTION_BYTES_MAX: Final = 1024 * 1_048_576
"""Of a stream, which goes on over the next connection."""
TIMEOUT_SECONDS: Final = 30.0
"""A change is answered within ten, and a history may wait for others."""
TRIES_MAX: Final = 4
BACKOFF_FIRST_SECONDS: Final = 0.25
RETRY_AFTER_SECONDS_MAX: Final = 30.0
"""A gateway that asks for a longer pause is not waited for."""
CONNECT_SECONDS_MAX: Final = 10.0
SILENCE_SECONDS_MAX: Final = 45.0
"""Of a stream: the gateway gives a sign of life every 15 s."""
RECONNECT_SECONDS: Final = 1.0
GIVE_UP_SECONDS: Final = 300.0
"""Without any sign of life of a stream, over all connections."""
TRANSIENT: Final = frozenset(
    {
        *(HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY),
        *(HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT),
    }
)
RESET: Final = "reset"
END: Final = "end"
JSON: Final = "application/json"

_problems = msgspec.json.Decoder(Problem)


class _TransientError(Exception):
    """The same request may succeed later."""

    def __init__(self, error: GatewayError | NoAnswerError, after_seconds: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_seconds = after_seconds


class HttpTransport:
    """Sends requests to one gateway, over connections that it keeps."""

    def __init__(
        self,
        options: ServerOptions,
        clock: Clock,
        new_key: Callable[[], str],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        tries_max: int = TRIES_MAX,
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        """`new_key`: of a change that has none."""
        self._options = options
        self._clock = clock
        self._new_key = new_key
        self._timeout_seconds = timeout_seconds
        self._tries_max = tries_max
        self._give_up_seconds = give_up_seconds
        own = {"Authorization": f"Bearer {options.token}"} if options.token else {}
        timeout = httpx.Timeout(SILENCE_SECONDS_MAX, connect=CONNECT_SECONDS_MAX)
        self._client = bounded_client(
            bytes_max=CONNECTION_BYTES_MAX,
            headers={"User-Agent": "navarch", **own},
            verify=options.tls(),
            timeout=timeout,
            follow_redirects=False,
            leads_anywhere=True,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def send(self, call: ApiCall[T]) -> T:
        """Send a call, again where that may help; GatewayError or NoAnswerError if it fails."""
        key = None if call.key is None else call.key or self._new_key()
        tries = self._tries_max if key is not None or call.method == "GET" else 1
        for number in range(tries):
            try:
                return await self._once(call, key or "")
            except _TransientError as failed:
                pause = max(failed.after_seconds, BACKOFF_FIRST_SECONDS * 2**number)
                if number == tries - 1 or failed.after_seconds > RETRY_AFTER_SECONDS_MAX:
                    raise failed.error from None
            await self._clock.sleep(pause)
        raise AssertionError(tries)

    async def _once(self, call: ApiCall[T], key: str) -> T:
        given = {
            k: v for k, v in call.query.items() if not (v is False or v is None or v in ("", ()))
        }
        headers = {"Idempotency-Key": key} if key else {}
        if call.body is not None:
            headers["Content-Type"] = JSON
        request = self._client.build_request(
            call.method,
            f"{self._options.url}{call.path}",
            params=given,
            headers=headers,
            content=None if call.body is None else encode(call.body),
        )
        seconds = self._timeout_seconds + call.more_seconds
        request.extensions["timeout"] = httpx.Timeout(
            seconds, connect=CONNECT_SECONDS_MAX
        ).as_dict()
        try:
            async with asyncio.timeout(seconds):
                answer = await self._client.send(request, stream=True)
                try:
                    body = await self._body(answer)
                finally:
                    await answer.aclose()
        except TimeoutError:
            error = self._no_answer(f"no answer within {seconds:g} s")
            raise _TransientError(error) from None
        except httpx.DecodingError as failed:
            raise self._no_answer(failure_text(failed)) from failed
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as failed:
            raise _TransientError(self._no_answer(self._failure(failed))) from failed
        if answer.status_code != HTTPStatus.OK or kind_of(answer) != JSON:
            raise self._problem(answer, body, key)
        try:
            found: T = _decoder(cast("Any", call.answer)).decode(body)
        except msgspec.DecodeError as wrong:
            text = f"an answer to {call.path} that this release does not know ({wrong})"
            raise self._no_answer(text) from wrong
        return found

    async def _body(self, answer: httpx.Response) -> bytes:
        parts, size = [], 0
        async for chunk in answer.aiter_raw():
            size += len(chunk)
            if size > ANSWER_BYTES_MAX:
                raise self._no_answer(f"an answer longer than {ANSWER_BYTES_MAX} bytes")
            parts.append(chunk)
        return b"".join(parts)

    def _problem(self, answer: httpx.Response, body: bytes, key: str = "") -> Exception:
        """What an answer means that is not the one asked for."""
        after = retry_after_seconds(answer.headers.get("Retry-After", ""))
        error: GatewayError | NoAnswerError
        if (problem := problem_of(answer, body)) is not None:
            error = gateway_error(problem, key=key, after_seconds=after)
        elif answer.is_redirect:
            target = public_url(str(answer.headers.get("Location", "")))
            error = self._no_answer(
                f"a redirect to {target}, which is not followed: set {SERVER_VARIABLE} to the "
                "gateway's own address"
            )
        else:
            error = self._no_answer(
                f"{status_text(answer.status_code)} of another program than the gateway: check "
                f"{SERVER_VARIABLE}, and a proxy before it"
            )
        return _TransientError(error, after) if answer.status_code in TRANSIENT else error

    def _no_answer(self, text: str) -> NoAnswerError:
        return NoAnswerError(f"{public_url(self._options.url)}: {text}")

    def _failure(self, failed: Exception) -> str:
        text = failure_text(failed)
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return f"{text}: name its authority's file with {CA_VARIABLE}"
        return f"no connection, or it broke ({text})"

    async def follow(self, stream: ApiStream[T]) -> AsyncGenerator[T, None]:
        """The items of a stream as they come, each once, over any number of connections."""
        position, heard, connected, failures = stream.after, self._clock.monotonic(), False, 0
        failed: GatewayError | NoAnswerError
        while True:
            failed, pause = self._no_answer("the stream ended"), RECONNECT_SECONDS
            try:
                async with aclosing(self._connection(stream, position)) as events:
                    first = True
                    async for event in events:
                        # A gateway that ends each connection at its first words is away, too.
                        if event.data or not first:
                            heard = self._clock.monotonic()
                        first, connected = False, True
                        if event.kind == RESET:
                            raise EventsResetError("the events were set back: read the fleet again")
                        if event.kind == END:
                            return
                        sequence = int(event.id) if event.id.isdecimal() else position
                        is_new = position is None or sequence is None or sequence > position
                        position = sequence if is_new else position
                        if event.data and is_new:
                            yield self._item(stream, event)
            except _TransientError as broken:
                failed, failures = broken.error, failures + 1
                pause = max(pause, min(broken.after_seconds, RETRY_AFTER_SECONDS_MAX))
            given_up = self._clock.monotonic() - heard > self._give_up_seconds
            if given_up or (not connected and failures >= self._tries_max):
                raise failed
            await self._clock.sleep(pause)

    def _item(self, stream: ApiStream[T], event: SentEvent) -> T:
        try:
            found: T = _decoder(cast("Any", stream.item)).decode(event.data)
        except msgspec.DecodeError as wrong:
            text = f"an event that this release does not know ({wrong})"
            raise self._no_answer(text) from wrong
        return found

    async def _connection(
        self, stream: ApiStream[Any], position: int | None
    ) -> AsyncGenerator[SentEvent, None]:
        given = {name: value for name, value in stream.query.items() if value}
        headers = {"Last-Event-ID": str(position)} if position is not None else {}
        url = f"{self._options.url}{stream.path}"
        parser = EventParser()
        try:
            async with self._client.stream("GET", url, params=given, headers=headers) as answer:
                if answer.status_code != HTTPStatus.OK or kind_of(answer) != STREAM_TYPE:
                    async with asyncio.timeout(self._timeout_seconds):
                        body = await self._body(answer)
                    raise self._problem(answer, body)
                async for chunk in answer.aiter_raw():
                    for event in parser.feed(chunk):
                        yield event
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as failed:
            # A TimeoutError is an OSError.
            raise _TransientError(self._no_answer(self._failure(failed))) from failed
        except StreamFormatError as wrong:
            raise self._no_answer(str(wrong)) from wrong


def problem_of(answer: httpx.Response, body: bytes) -> Problem | None:
    """The problem that the gateway answered; None: it is none, so another program answered."""
    if kind_of(answer) != PROBLEM_TYPE:
        return None
    try:
        return msgspec.structs.replace(_problems.decode(body), status=answer.status_code)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def kind_of(answer: httpx.Response) -> str:
    """Return the media type of an answer, without its parameters."""
    return str(answer.headers.get("Content-Type", "")).partition(";")[0].strip().lower()


@cache
def _decoder(kind: Any) -> LimitedDecoder[Any]:
    return LimitedDecoder(kind)
