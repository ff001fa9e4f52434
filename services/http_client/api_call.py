"""Describes a call, a stream and an error of the HTTP API as values. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from services.gateway.views import Problem
from services.primitives.errors import NavarchError

T_co = TypeVar("T_co", covariant=True)


class GatewayError(NavarchError):
    """The gateway answered with a problem."""

    def __init__(self, problem: Problem, *, key: str = "", after_seconds: float = 0.0) -> None:
        """`after_seconds`: when the gateway may be asked again.

        `key`: of the change; sent again with it, the change is carried out once.
        """
        remedy = f": {problem.remedy}" if problem.remedy else ""
        super().__init__(f"{problem.detail}{remedy}")
        self.problem = problem
        self.code = problem.code
        self.key = key
        self.after_seconds = after_seconds


class UnansweredChangeError(GatewayError):
    """202: the change is stored, and the pool-manager has not answered it yet."""


class InvalidCallError(GatewayError):
    """400: a parameter is wrong."""


class UnauthenticatedError(GatewayError):
    """401: no token, or one that is not valid."""


class ForbiddenError(GatewayError):
    """403: the caller's role or pools do not include this."""


class NotFoundError(GatewayError):
    """404: there is none, or none that the caller may see."""


class ChangeRefusedError(GatewayError):
    """409: the fleet refuses the change; `problem.refusal` is the code."""


class KeyReusedError(GatewayError):
    """422: the idempotency key belongs to another change."""


class CallerRateError(GatewayError):
    """429: the caller asks too often, or has too many streams."""


class FleetUnavailableError(GatewayError):
    """503: the fleet cannot be asked now."""


class NoAnswerError(NavarchError):
    """No gateway answered: no connection, no answer in time, or another program's."""


class EventsResetError(NavarchError):
    """The events were set back, as by a restored store: read the fleet again, then follow again."""


KINDS: Final[dict[int, type[GatewayError]]] = {
    HTTPStatus.ACCEPTED: UnansweredChangeError,
    HTTPStatus.BAD_REQUEST: InvalidCallError,
    HTTPStatus.UNAUTHORIZED: UnauthenticatedError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ChangeRefusedError,
    HTTPStatus.UNPROCESSABLE_ENTITY: KeyReusedError,
    HTTPStatus.TOO_MANY_REQUESTS: CallerRateError,
    HTTPStatus.SERVICE_UNAVAILABLE: FleetUnavailableError,
}


def gateway_error(problem: Problem, *, key: str = "", after_seconds: float = 0.0) -> GatewayError:
    """Return the error that a problem describes."""
    return KINDS.get(problem.status, GatewayError)(problem, key=key, after_seconds=after_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall(Generic[T_co]):
    """Describes a request and the type of its answer."""

    path: str
    answer: type[T_co]
    query: Mapping[str, Any] = field(default_factory=dict)
    method: str = "GET"
    body: msgspec.Struct | None = None
    key: str | None = None
    """Of a change: its idempotency key; empty: the client makes one. None: it has none."""
    more_seconds: float = 0.0
    """How much longer than others the gateway may take for it."""


class ItemPage(Protocol[T_co]):
    """Some items, and the cursor of what follows."""

    @property
    def items(self) -> Sequence[T_co]:
        """Return the items of the answer."""

    @property
    def next(self) -> str | int:
        """Empty or 0: that was all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiStream(Generic[T_co]):
    """Describes what is followed, the type of its items, and where it goes on."""

    path: str
    item: type[T_co]
    query: Mapping[str, Any] = field(default_factory=dict)
    after: int | None = None
    """The sequence of the last item seen; None: from now on, or from the whole."""
