"""Has each request authenticated, and checks rate, role and pool."""

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult
from litestar.types import ASGIApp

from services.gateway.access_tokens import ANYONE, Principal
from services.gateway.authenticators.authenticator import Presented
from services.gateway.authenticators.certificate_authenticator import peer_certificate
from services.gateway.authenticators.chain import AuthenticatorChain
from services.gateway.caller_rate import CallerRate
from services.gateway.gateway_start import LOOPBACK
from services.gateway.problems import ProblemError, too_often
from services.runtime.http_protocol import KNOW_CALLER, PEER_CERTIFICATE

Connection = ASGIConnection[Any, Any, Any, Any]
ROLE: Final = "role"
"""Key in a route's `opt`: the role that it needs."""
PUBLIC: Final = "exclude_from_auth"
"""Key in a route's `opt`: it needs no token."""


OWN_PAGE: Final = "same-origin"
NO_PAGE: Final = "none"
"""What a browser says where its user typed the address."""


class Access:
    """Decides who may ask, and how often."""

    def __init__(
        self,
        chain: AuthenticatorChain,
        rate: CallerRate,
        now: Callable[[], datetime],
    ) -> None:
        """With an empty chain every caller on this machine is an administrator."""
        self._chain = chain
        self._rate = rate
        self._now = now

    async def authenticate(self, connection: Connection) -> Principal:
        """Return the caller; ProblemError if it is unknown or asks too often."""
        found = await self._principal(connection)
        wait = self._rate.seconds_to_wait(found.name, self._now().timestamp())
        if wait:
            detail = f"{found.name} asks more often than gateway.requests_per_minute allows"
            raise too_often(detail, wait, ", or follow /api/v1/events/stream")
        require_room(connection, found.name)
        return found

    async def _principal(self, connection: Connection) -> Principal:
        if self._chain.is_empty:
            refuse_foreign_page(connection)
            return ANYONE
        return await self._chain.authenticate(presented(connection))


def presented(connection: Connection) -> Presented:
    """Return what a request says of its sender."""
    scope: Any = connection.scope
    return Presented(
        method=scope["method"],
        path=scope["path"],
        headers=dict(connection.headers),
        address=str((scope.get("client") or ("", 0))[0]),
        certificate=peer_certificate(scope.get("state", {}).get(PEER_CERTIFICATE) or {}),
    )


def require_room(connection: Connection, caller: str) -> None:
    """Count the connection as an authenticated caller's; ProblemError if they are too many."""
    scope: Any = connection.scope
    know = scope.get("state", {}).get(KNOW_CALLER)
    if know is not None and not know(caller):
        raise ProblemError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"{caller}, or all callers together, have as many connections open as they may",
            "close event streams that no one reads, or run another gateway",
        )


def refuse_foreign_page(connection: Connection) -> None:
    """Refuse what a web page of another site has the operator's browser send.

    Another program of this machine may serve such a page too: a notebook, or a preview. What the
    browser says of the page is its own word, which no page can change.
    """
    host, origin = connection.headers.get("host", ""), connection.headers.get("origin")
    page = connection.headers.get("sec-fetch-site", OWN_PAGE)
    is_own = origin is None or origin.partition("://")[2].lower() == host.lower()
    if not is_own or page not in (OWN_PAGE, NO_PAGE) or _host(f"//{host}") not in LOOPBACK:
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
    """Return the middleware of one gateway."""

    class CallerAuthentication(AbstractAuthenticationMiddleware):
        """Sets the request's user."""

        def __init__(self, app: ASGIApp, **options: Any) -> None:
            # By default OPTIONS would need no token, and have no user.
            super().__init__(app, exclude_from_auth_key=PUBLIC, exclude_http_methods=[], **options)

        async def authenticate_request(self, connection: Connection) -> AuthenticationResult:
            """Return the caller."""
            return AuthenticationResult(user=await access.authenticate(connection), auth=None)

    return CallerAuthentication


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
