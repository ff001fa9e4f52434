"""POST /mcp: the fleet's tools for assistants, with the caller's token, role and pools.

Each request is on its own: the gateway keeps no session, only the plans that wait for confirmation.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import Message, Receive, Scope, Send

from schemas.fleet_events import HttpChange
from schemas.operations import CHANGE
from schemas.operator_requests import Request
from schemas.value_limits import NAME_CHARS_MAX
from services.fleet_client.fleet_client import FleetClient, UnansweredError
from services.gateway.access_tokens import Principal
from services.gateway.change_requests import ASSISTANTS, REASON_CHARS_MAX, ChangeRequests
from services.gateway.problems import PROTECTION, REQUEST_HEADER, ProblemError
from services.mcp_server.change_plans import ChangePlans
from services.mcp_server.tool_caller import HISTORIES_MAX, ToolAccess
from services.primitives.errors import AnswerError, NavarchError
from services.runtime.event_publisher import publish_event

if TYPE_CHECKING:
    from services.mcp_server.protocol_server import Context

BODY_BYTES_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class HttpToolCaller:
    """A principal of the gateway; each of its changes is in the events, also a refused one."""

    principal: Principal
    address: str
    fleet: FleetClient
    changes: ChangeRequests
    now: Callable[[], datetime]
    new_id: Callable[[], str]

    @property
    def name(self) -> str:
        """Return the name of the caller's token."""
        return self.principal.name

    def sees(self, pool: str) -> bool:
        """Return whether the caller may see a pool."""
        return self.principal.sees(pool)

    async def send(self, pool: str, verb: str, request: Request) -> msgspec.Struct:
        """Request a change as a POST of the HTTP API does."""
        about = f"{verb} {pool}/{getattr(request, 'node', '')}".rstrip("/")
        if not self.principal.may(needed := CHANGE[verb].role):
            reason = f"this needs the role {needed}; {self.name} has {self.principal.role}"
            await self._record(about, "forbidden", reason)
            raise AnswerError(reason, "not-permitted")
        try:
            answer = await self.changes.send(self.principal, pool, verb, request)
        except ProblemError as error:
            request_id = error.headers.get(REQUEST_HEADER, "")
            await self._record(about, "refused", str(error), request_id)
            raise AnswerError(f"refused ({error.refusal}): {error}", error.refusal) from error
        except UnansweredError as error:
            await self._record(about, "unanswered", str(error))
            raise
        except NavarchError as error:
            await self._record(about, "failed", str(error))
            raise
        await self._record(about, "accepted", "", answer.request)
        return answer

    async def _record(self, about: str, outcome: Any, reason: str, request: str = "") -> None:
        event = HttpChange(
            id=self.new_id(),
            time=self.now(),
            by=self.name,
            role=self.principal.role,
            address=self.address,
            change=f"POST {ASSISTANTS} {about}"[:NAME_CHARS_MAX],
            outcome=outcome,
            reason=reason[:REASON_CHARS_MAX],
            request=request,
        )
        await publish_event(self.fleet.bus, event)


class AssistantEndpoint:
    """The route, and what runs behind it."""

    def __init__(
        self,
        fleet: FleetClient,
        now: Callable[[], datetime],
        new_id: Callable[[], str],
        key: bytes,
    ) -> None:
        """`key`: random, for the plans' tokens."""
        self._fleet = fleet
        self._now = now
        self._new_id = new_id
        self._changes = ChangeRequests(fleet, now, new_id)
        self._plans = ChangePlans(key)
        self._histories = asyncio.Semaphore(HISTORIES_MAX)
        self._asked = asyncio.Event()
        self._loaded: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Answer requests until cancelled.

        The SDK takes a second and 30 MB: it is loaded at the first request, beside the others.
        """
        await self._asked.wait()
        try:
            server_of, manager_of = await asyncio.to_thread(_protocol)
        except ImportError as error:
            self._loaded.set_exception(error)
            raise
        manager = manager_of(server_of(self._access), BODY_BYTES_MAX)
        async with manager.run():
            self._loaded.set_result(manager)
            await asyncio.Event().wait()

    def route(self) -> ASGIRouteHandler:
        """Return the route of the application."""

        @asgi(ASSISTANTS, copy_scope=True)
        async def assistants(scope: Scope, receive: Receive, send: Send) -> None:
            request: Any = scope
            if request["method"] != "POST":
                # There is no session to end and no stream of the server's own to open.
                problem = ProblemError(HTTPStatus.METHOD_NOT_ALLOWED, "this path takes POST alone")
                problem.headers["Allow"] = "POST"
                raise problem

            async def protected(message: Message) -> None:
                if message["type"] == "http.response.start":
                    own = [(name.lower().encode(), value.encode()) for name, value in PROTECTED]
                    message["headers"] = [*message["headers"], *own]
                await send(message)

            self._asked.set()
            manager = await asyncio.shield(self._loaded)
            await manager.handle_request(request, receive, protected)

        return assistants

    def _access(self, context: "Context") -> ToolAccess:
        assert context.request is not None  # this transport has one
        scope = context.request.scope
        caller = HttpToolCaller(
            principal=scope["user"],
            address=str((scope.get("client") or ("", 0))[0]),
            fleet=self._fleet,
            changes=self._changes,
            now=self._now,
            new_id=self._new_id,
        )
        return ToolAccess(self._fleet, caller, self._plans, self._now, self._histories)


def _protocol() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from services.mcp_server.protocol_server import http_manager, protocol_server  # noqa: PLC0415

    return protocol_server, http_manager


PROTECTED: Final = tuple((n, v) for n, v in PROTECTION.items() if n != "Cache-Control")
