"""Calls of the Kubernetes API, through the connection that kubernetes-asyncio makes.

Answers are read here, up to a limit and only the parts that are used: its own classes hold every
field of every object, which is slow and large for a thousand nodes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any, Final, TypeVar

import msgspec

from services.primitives.backoff import retry_after_seconds
from services.primitives.errors import ConfigurationError
from services.workload_systems.cluster_access import ClusterAccess

log = logging.getLogger(__name__)

T = TypeVar("T")

LIST_PAGE: Final = 500
ANSWER_BYTES_MAX: Final = 256 * 1_048_576
"""A page of LIST_PAGE pods of half a megabyte."""
LINE_BYTES_MAX: Final = 8 * 1_048_576
"""One event of a watch; Kubernetes limits an object to 1.5 MiB."""
SILENCE_SECONDS_MAX: Final = 150.0
"""A watch without a line is dead: the server sends a bookmark every minute."""
LOGIN_FAILED: Final = 401
NOT_FOUND: Final = 404
LOGIN_SECONDS_MAX: Final = 120.0
"""How long one login may take; calls wait for it as long as for an answer."""
MERGE: Final = "application/merge-patch+json"
STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"


class KubernetesError(Exception):
    """The API answered with an error."""

    def __init__(
        self,
        call: str,
        status: int,
        message: str,
        reason: str = "",
        retry_after: float | None = None,
    ) -> None:
        """`call`: method and path; `reason`: Kubernetes' own code, as `Expired`."""
        super().__init__(f"{call}: {status} {message}")
        self.status = status
        self.message = message
        self.reason = reason
        self.retry_after = retry_after
        """Seconds to wait, where the server says so."""


class MissingRightError(KubernetesError):
    """Navarch's account may not make this call."""


class _Cause(msgspec.Struct, frozen=True):
    message: str = ""


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    causes: tuple[_Cause, ...] = ()
    retry_after_seconds: float = 0.0


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""
    details: _Details | None = None


_statuses = msgspec.json.Decoder(_Status)


class ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """Holds a list's version, and where it goes on."""

    resource_version: str = ""
    next_page: str = msgspec.field(default="", name="continue")


class ListPage(msgspec.Struct, frozen=True):
    """Holds one page of a list."""

    metadata: ListMetadata
    items: tuple[msgspec.Raw, ...] | None = None


_pages = msgspec.json.Decoder(ListPage)


class _GroupVersion(msgspec.Struct, frozen=True):
    version: str = ""


class _ApiGroup(msgspec.Struct, frozen=True):
    versions: tuple[_GroupVersion, ...] = ()


class KubernetesClient:
    """Calls one cluster's API."""

    def __init__(self, access: ClusterAccess, *, timeout_seconds: float) -> None:
        access.check_place()
        self._access = access
        self._timeout_seconds = timeout_seconds
        self._login: asyncio.Task[Any] | None = None
        self._expired: Any = None
        """The connection before: calls that had begun on it end there."""
        self._streams: set[Any] = set()
        """Bodies of the answers that do not end."""

    async def get(self, path: str, kind: type[T], **query: str) -> T:
        """Read an object or a list."""
        return msgspec.json.decode(await self.call("GET", path, query=query), type=kind)

    async def pages(self, path: str, **query: str) -> AsyncIterator[ListPage]:
        """Read a list, LIST_PAGE objects at a time."""
        asked = {**query, "limit": str(LIST_PAGE)}
        while True:
            page = _pages.decode(await self.call("GET", path, query=asked))
            yield page
            if not page.metadata.next_page:
                return
            asked["continue"] = page.metadata.next_page

    async def version(self, group: str, readable: Sequence[str]) -> str:
        """Return the first of these versions in which `/apis/GROUP` is served; empty: none is."""
        try:
            served = {each.version for each in (await self.get(group, _ApiGroup)).versions}
        except KubernetesError as error:
            if error.status != NOT_FOUND:
                raise
            served = set()
        return next((each for each in readable if each in served), "")

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Make one call; KubernetesError for an answer that is an error.

        TimeoutError and OSError where there is none.
        """
        async with asyncio.timeout(self._timeout_seconds):
            answer = await self._send(method, path, body, query, content_type)
            try:
                return await _read(answer)
            finally:
                answer.release()

    @asynccontextmanager
    async def lines(self, path: str, **query: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Read the lines of an answer that does not end; TimeoutError where it falls silent.

        A new login ends them, so that none goes on with rights that have ended.
        """
        async with asyncio.timeout(self._timeout_seconds):
            answer = await self._send("GET", path, None, query, "application/json")
        self._streams.add(answer.content)
        try:
            yield _lines(answer)
        finally:
            self._streams.discard(answer.content)
            answer.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._expired is not None:
            await self._expired.close()
        begun, self._login = self._login, None
        if begun is None or begun.cancel():
            return
        if begun.exception() is None:
            await begun.result().close()

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        content_type: str,
    ) -> Any:
        api = await self._connected(None)
        for last_try in (False, True):
            with _connection_errors():
                answer = await api.call_api(
                    path,
                    method,
                    query_params=list((query or {}).items()),
                    header_params={"Accept": "application/json", "Content-Type": content_type},
                    body=dict(body) if body is not None else None,
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                )
            if answer.status == LOGIN_FAILED and not last_try:  # a credential has expired
                answer.close()
                api = await self._connected(api)
                continue
            if answer.status >= 400:  # noqa: PLR2004 - HTTP's errors
                try:
                    raise _error(f"{method} {path}", answer, await _read(answer))
                finally:
                    answer.release()
            return answer
        raise AssertionError

    async def _connected(self, expired: Any) -> Any:
        """The connection; a new one in place of `expired`.

        A login outlives the call that began it: a program that hangs is not run for each call.
        """
        begun = self._login
        if begun is None or (begun.done() and (begun.exception() or begun.result() is expired)):
            self._login = begun = asyncio.create_task(self._log_in(expired))
        return await asyncio.shield(begun)

    async def _log_in(self, expired: Any) -> Any:
        if expired is not None and expired is not self._expired:
            for each in self._streams:
                each.feed_eof()
            before, self._expired = self._expired, expired
            if before is not None:
                await before.close()
        try:
            async with asyncio.timeout(LOGIN_SECONDS_MAX):
                with _connection_errors():
                    return await self._access.connect()
        except ConfigurationError as error:
            raise KubernetesError("login", LOGIN_FAILED, str(error), "Unauthorized") from error


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Raise what the HTTP library raises for lost connections as ConnectionError."""
    # Here and not above: the library is loaded with the first connection.
    library = import_module("aiohttp")
    try:
        yield
    except library.ClientError as error:
        raise ConnectionError(str(error) or type(error).__name__) from error


async def _read(answer: Any) -> bytes:
    body = bytearray()
    with _connection_errors():
        async for chunk in answer.content.iter_any():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise ValueError(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
    return bytes(body)


async def _lines(answer: Any) -> AsyncIterator[bytes]:
    rest = b""
    chunks = answer.content.iter_any()
    while True:
        try:
            async with asyncio.timeout(SILENCE_SECONDS_MAX):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError(f"an event is longer than {LINE_BYTES_MAX} bytes")
        for each in whole:
            if each:
                yield each


def _error(call: str, answer: Any, body: bytes) -> KubernetesError:
    try:
        found = _statuses.decode(body)
    except msgspec.DecodeError:
        found = _Status(message=f"{len(body)} bytes that are no Kubernetes status")
    causes = [each.message for each in found.details.causes] if found.details else []
    message = "; ".join([found.message, *filter(None, causes)])
    right = answer.status == 403 and "cannot" in message  # noqa: PLR2004
    kind = MissingRightError if right else KubernetesError
    seconds = found.details.retry_after_seconds if found.details else 0.0
    seconds = seconds or retry_after_seconds(answer.headers.get("Retry-After", ""))
    return kind(call, answer.status, message, found.reason, seconds or None)
