"""Authenticates each request by its bearer token, and checks rate, role and pool."""

from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from math import ceil
from typing import Any, Final
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult
from litestar.types import ASGIApp

from schemas.gateway_settings import TokenSpec
from services.gateway.access_tokens import (
    ANYONE,
    CHARS_MAX,
    ExpiredTokenError,
    Principal,
    find_principal,
)
from services.gateway.caller_rate import CallerRate
from services.gateway.gateway_start import LOOPBACK
from services.gateway.problems import ProblemError

Connection = ASGIConnection[Any, Any, Any, Any]
SCHEME: Final = "bearer "
ROLE: Final = "role"
"""Key in a route's `opt`: the role that it needs."""
PUBLIC: Final = "exclude_from_auth"
"""Key in a route's `opt`: it needs no token."""


class Access:
    """Who may ask, and how often."""

    def __init__(
        self,
        tokens: Mapping[str, TokenSpec],
        rate: CallerRate,
        now: Callable[[], datetime],
    ) -> None:
        """Without tokens every caller on this machine is an administrator."""
        self._tokens = tokens
        self._rate = rate
        self._now = now

    def authenticate(self, connection: Connection) -> Principal:
        """Return the caller; ProblemError if it is unknown or asks too often."""
        found = self._principal(connection)
        wait = self._rate.seconds_to_wait(found.name, self._now().timestamp())
        if wait:
            error = ProblemError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{found.name} asks more often than gateway.requests_per_minute allows",
                f"repeat it after {ceil(wait)} s, or follow /api/v1/events/stream",
            )
            error.headers["Retry-After"] = str(ceil(wait))
            raise error
        return found

    def _principal(self, connection: Connection) -> Principal:
        if not self._tokens:
            refuse_foreign_page(connection)
            return ANYONE
        header = connection.headers.get("authorization", "")
        if header[: len(SCHEME)].lower() != SCHEME:
            raise ProblemError(HTTPStatus.UNAUTHORIZED, "the request has no bearer token")
        presented = header[len(SCHEME) :].strip()
        try:
            known = len(presented) <= CHARS_MAX
            found = find_principal(self._tokens, presented, self._now()) if known else None
        except ExpiredTokenError as error:
            raise ProblemError(HTTPStatus.UNAUTHORIZED, str(error)) from error
        if found is None:
            raise ProblemError(HTTPStatus.UNAUTHORIZED, "the token is not valid")
        return found


def refuse_foreign_page(connection: Connection) -> None:
    """Refuse what a web page of another site has the operator's browser send."""
    origin = connection.headers.get("origin", "")
    named = [f"//{connection.headers.get('host', '')}", *([origin] if origin else [])]
    if any(_host(each) not in LOOPBACK for each in named):
        raise ProblemError(
            HTTPStatus.FORBIDDEN,
            "without tokens the gateway answers callers on its own machine only",
            "configure gateway.tokens, or use http://127.0.0.1",
        )


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def authentication(access: Access) -> type[AbstractAuthenticationMiddleware]:
    """The middleware of one gateway."""

    class BearerAuthentication(AbstractAuthenticationMiddleware):
        """Sets the request's user."""

        def __init__(self, app: ASGIApp, **options: Any) -> None:
            # By default OPTIONS would need no token, and have no user.
            super().__init__(app, exclude_from_auth_key=PUBLIC, exclude_http_methods=[], **options)

        async def authenticate_request(self, connection: Connection) -> AuthenticationResult:
            """Return the caller."""
            return AuthenticationResult(user=access.authenticate(connection), auth=None)

    return BearerAuthentication


def require_role(connection: Connection, handler: BaseRouteHandler) -> None:
    """Refuse a caller whose role does not include the route's."""
    if handler.opt.get(PUBLIC):
        return
    principal: Principal = connection.user
    needed = handler.opt.get(ROLE, "viewer")
    if not principal.may(needed):
        raise ProblemError(
            HTTPStatus.FORBIDDEN,
            f"this needs the role {needed}; {principal.name} has {principal.role}",
            f"use a token of role {needed}: `navarch gateway token create NAME --role {needed}`",
        )
