"""`ETag` of each JSON answer and dashboard file; 304 where the caller has that answer already."""

import hashlib
from typing import Any, Final

from litestar.types import ASGIApp, Receive, Scope, Send

TAGGED: Final = frozenset(
    {b"application/json", b"text/html", b"text/javascript", b"text/css", b"image/svg+xml"}
)
OK: Final = 200
NOT_MODIFIED: Final = 304


class EntityTags:
    """Middleware; answers of other types, as event streams, pass as they come."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request: Any = scope
        answer: Any = send
        if request["method"] != "GET":
            await self._app(scope, receive, send)
            return
        known = dict(request["headers"]).get(b"if-none-match", b"").decode("latin-1")
        start: Any = None
        body = b""

        async def tag(message: Any) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type", b"")
                if message["status"] == OK and kind.partition(b";")[0] in TAGGED:
                    start = message
                    return
            if start is None:
                await send(message)
                return
            body += message["body"]
            if message["more_body"]:
                return
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            headers = [*start["headers"], (b"etag", etag.encode())]
            if matches(known, etag):
                headers = [each for each in headers if each[0] != b"content-length"]
                start, body = {**start, "status": NOT_MODIFIED}, b""
            await answer({**start, "headers": headers})
            await answer({**message, "body": body})

        await self._app(scope, receive, tag)


def matches(if_none_match: str, etag: str) -> bool:
    """Whether the caller has this answer. Pure."""
    named = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return "*" in named or etag in named
