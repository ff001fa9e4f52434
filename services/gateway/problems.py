"""Describes every error of the HTTP API as `application/problem+json` (RFC 9457), with a remedy."""

import logging
from dataclasses import replace
from http import HTTPStatus
from math import ceil
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi import ResponseSpec

from schemas.names import InvalidNameError
from schemas.refusal_catalogue import CATALOGUE, CODE_OF
from services.fleet_client.fleet_client import UnansweredError
from services.gateway.views import PROBLEM_TYPE, Problem
from services.primitives.errors import AnswerError, BusError, NavarchError
from services.primitives.redaction import redacted

log = logging.getLogger(__name__)

ROOT: Final = "/api/v1"
REASON: Final = "navarch-problem"
"""Key in a request's state: the detail of the problem that answers it."""
REQUEST_HEADER: Final = "Navarch-Request"
"""Of answers to changes: the request that the change became."""
PROTECTION: Final = {"Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}
"""Of every answer: no cache keeps it, and no browser guesses its type."""
RETRY_SECONDS: Final = 2
DETAIL_CHARS_MAX: Final = 2_000


PROBLEMS: Final = {
    int(status): ResponseSpec(
        data_container=Problem,
        generate_examples=False,
        media_type=PROBLEM_TYPE,
        description=status.phrase,
    )
    for status in (
        *(HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN),
        *(HTTPStatus.NOT_FOUND, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE),
    )
}
"""What every route may answer instead, for the API's description."""
CHANGE_PROBLEMS: Final = PROBLEMS | {
    int(status): replace(PROBLEMS[400], description=status.phrase)
    for status in (
        *(HTTPStatus.ACCEPTED, HTTPStatus.CONFLICT),
        *(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
}
"""And a change: it is not answered yet, refused, or its key was used for another."""


class ProblemError(NavarchError):
    """A request that is answered with a problem."""

    def __init__(
        self, status: HTTPStatus, detail: str, remedy: str = "", *, refusal: str = ""
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.remedy = remedy or CATALOGUE[refusal or CODE_OF[status]].remedy
        self.refusal = refusal
        self.headers: dict[str, str] = {}


def not_found(what: str, name: str, path: str) -> ProblemError:
    """There is none, or none that the caller may see."""
    return ProblemError(
        HTTPStatus.NOT_FOUND, f"there is no {what} {name!r}", f"GET {path} lists them"
    )


def too_often(detail: str, wait_seconds: float, instead: str = "") -> ProblemError:
    """Return the refusal of a request that comes before its caller's next one is due."""
    seconds = ceil(wait_seconds)
    error = ProblemError(
        HTTPStatus.TOO_MANY_REQUESTS, detail, f"repeat it after {seconds} s{instead}"
    )
    error.headers["Retry-After"] = str(seconds)
    return error


def answer_problem(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """The answer to a request that failed."""
    status, detail, remedy, refusal = _described(error)
    headers = dict(getattr(error, "headers", None) or {}) | PROTECTION
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.setdefault("Retry-After", str(RETRY_SECONDS))
    problem = Problem(
        title=status.phrase,
        status=status,
        detail=redacted(detail)[:DETAIL_CHARS_MAX],
        remedy=remedy,
        refusal=refusal,
        code=refusal or CODE_OF.get(status, CODE_OF[HTTPStatus.BAD_REQUEST]),
    )
    request.scope.setdefault("state", {})[REASON] = problem.detail
    return Response(problem, status_code=status, media_type=PROBLEM_TYPE, headers=headers)


def _described(error: Exception) -> tuple[HTTPStatus, str, str, str]:
    """Status, detail, remedy and refusal code."""
    match error:
        case ProblemError():
            return error.status, str(error), error.remedy, error.refusal
        case ValidationException():
            status, detail = HTTPStatus.BAD_REQUEST, _validation_text(error)
        case HTTPException():
            status = HTTPStatus(error.status_code)
            is_defect = status >= HTTPStatus.INTERNAL_SERVER_ERROR
            detail = "" if is_defect else str(error.detail)
            if is_defect:
                log.error("a request failed", exc_info=error)
        case UnansweredError():
            status, detail = HTTPStatus.ACCEPTED, str(error)
        case InvalidNameError() | AnswerError():
            status, detail = HTTPStatus.BAD_REQUEST, str(error)
        case BusError() | NavarchError():
            status, detail = HTTPStatus.SERVICE_UNAVAILABLE, str(error)
        case RecursionError():  # of the decoder: it reads lists in lists to a limit
            status, detail = HTTPStatus.BAD_REQUEST, "the body is nested too deeply"
        case UnicodeDecodeError():
            status, detail = HTTPStatus.BAD_REQUEST, "the body is no UTF-8"
        case msgspec.DecodeError():
            status, detail = HTTPStatus.SERVICE_UNAVAILABLE, f"a record cannot be read: {error}"
        case _:
            status, detail = HTTPStatus.INTERNAL_SERVER_ERROR, ""
            log.error("a request failed", exc_info=error)
    code = CODE_OF.get(status, CODE_OF[HTTPStatus.BAD_REQUEST])
    return status, detail or status.phrase, CATALOGUE[code].remedy, ""


def _validation_text(error: ValidationException) -> str:
    parts = [
        f"{each.get('key', '')}: {each.get('message', '')}"
        for each in error.extra or ()
        if isinstance(each, dict)
    ]
    return "; ".join(parts) or str(error.detail)
