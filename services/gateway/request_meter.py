"""Counts requests by route and status, for `/metrics`."""

from collections.abc import Callable
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Scope, Send
from prometheus_client import CollectorRegistry, Counter

from schemas.metric_catalogue import HTTP_REQUESTS


def request_meter(registry: CollectorRegistry) -> Callable[[ASGIApp], ASGIApp]:
    """The middleware that counts into a registry what leaves."""
    answered = Counter(
        *HTTP_REQUESTS.declared,
        registry=registry,
    )

    def wrap(app: ASGIApp) -> ASGIApp:
        async def metered(scope: Scope, receive: Receive, send: Send) -> None:
            request: Any = scope

            async def count(message: Message) -> None:
                if message["type"] == "http.response.start":
                    route = request.get("path_template", "")
                    answered.labels(request["method"], route, message["status"]).inc()
                await send(message)

            await app(scope, receive, count)

        return metered

    return wrap
