"""Counts requests by route and status, for `/metrics`."""

from collections.abc import Callable
from http import HTTPMethod
from typing import Any, Final

from litestar.types import ASGIApp, Message, Receive, Scope, Send
from prometheus_client import CollectorRegistry, Counter

from schemas.metric_catalogue import HTTP_REQUESTS, OTHER
from services.gateway.problems import ProblemError

METHODS: Final = frozenset(HTTPMethod)
"""A caller may send any word; every other counts as `other`."""


def request_meter(registry: CollectorRegistry) -> Callable[[ASGIApp], ASGIApp]:
    """The middleware that counts into a registry what leaves."""
    answered = Counter(
        *HTTP_REQUESTS.declared,
        registry=registry,
    )

    def wrap(app: ASGIApp) -> ASGIApp:
        async def metered(scope: Scope, receive: Receive, send: Send) -> None:
            request: Any = scope

            def count(status: int) -> None:
                method = request["method"] if request["method"] in METHODS else OTHER
                answered.labels(method, request.get("path_template", ""), int(status)).inc()

            async def counted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    count(message["status"])
                await send(message)

            try:
                await app(scope, receive, counted)
            except ProblemError as error:
                # Of the authentication; the application answers it outside of this.
                count(error.status)
                raise

        return metered

    return wrap
