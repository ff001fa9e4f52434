"""Declares each code with which a request is refused or fails, the same on every surface.

The reason that comes with a code says what was wrong with this request; the catalogue says what the
code means and what to do. docs/troubleshooting.md has it as a table.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

REFUSED: Final = 1
STORED: Final = 4
"""Exit code where a change is stored and may still be carried out: look before repeating it."""


class RefusalMeaning(NamedTuple):
    """Says what a code means."""

    sentence: str
    remedy: str
    status: HTTPStatus = HTTPStatus.CONFLICT
    """Of the answer over HTTP."""
    exit_code: int = REFUSED
    """Of the command."""


_M = RefusalMeaning
_NAME: Final = "check the name: `navarch status` and `navarch list` show what there is"
REFUSALS: Final[Mapping[str, RefusalMeaning]] = {
    "invalid-request": _M(
        "The request cannot be read, or a value is not allowed.", "write what the reason says"
    ),
    "unknown-verb": _M("There is no request of this name.", "use one that the reason lists"),
    "unknown-pool": _M("There is no pool of this name.", _NAME),
    "unknown-node": _M("The pool has no node of this name.", _NAME),
    "unknown-saga": _M("The pool has no saga of this name.", "`navarch saga list` shows them"),
    "above-maximum": _M("More nodes than `max_nodes`.", "ask for fewer, or raise `max_nodes`"),
    "below-minimum": _M("Fewer nodes than `min_nodes`.", "ask for more, or lower `min_nodes`"),
    "saga-open": _M(
        "A saga about the node is under way, or the pool has as many as it may.",
        "wait until it has ended, or `navarch saga cancel` it",
    ),
    "budget-exhausted": _M(
        "As many nodes are out of service as `budget.max_unavailable` allows.",
        "wait until some are back, raise it, or `navarch cordon` the node first and ask again",
    ),
    "not-active": _M("The node is not in service.", "`navarch why NODE` says what it waits for"),
    "wrong-state": _M(
        "The pool, the node or the saga is in a state in which this is not possible.",
        "do first what the reason says",
    ),
    "held": _M("An operator holds the node.", "`navarch release NODE`, or wait until it ends"),
    "observing": _M("The pool is in observe mode.", "set `mode: act`"),
    "superseded": _M(
        "A later request about the same was carried out first, or this one waited for an hour.",
        "ask again if still wanted",
    ),
}
"""Code of `schemas.enums.Refusal` -> what it means."""
_INVALID: Final = "correct the request; /api/v1/openapi.json describes it"
FAILURES: Final[Mapping[str, RefusalMeaning]] = {
    "unanswered": _M(
        "The change is stored, and not yet answered.",
        "GET /api/v1/events shows the answer",
        HTTPStatus.ACCEPTED,
        STORED,
    ),
    "invalid-call": _M("A parameter or the body is wrong.", _INVALID, HTTPStatus.BAD_REQUEST),
    "unauthenticated": _M(
        "The caller sent no credentials, or some that are not valid.",
        "send `Authorization: Bearer TOKEN`; `navarch gateway token create` makes a token",
        HTTPStatus.UNAUTHORIZED,
    ),
    "not-permitted": _M(
        "The caller's role or pools do not include this.",
        "use credentials of the role that the reason names",
        HTTPStatus.FORBIDDEN,
    ),
    "unknown-name": _M(
        "There is none of this name, or none that the caller may see.",
        "check the name and the path; /api/v1/openapi.json lists every path",
        HTTPStatus.NOT_FOUND,
    ),
    "unknown-method": _M(
        "The path does not take this method.",
        "/api/v1/openapi.json lists the methods of every path",
        HTTPStatus.METHOD_NOT_ALLOWED,
    ),
    "refused": _M(
        "The service that performs it refuses.", "the detail says what would be accepted"
    ),
    "too-large": _M("The body is too large.", "send less", HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    "key-reused": _M(
        "The idempotency key belongs to another request.",
        "send a new key with each new request",
        HTTPStatus.UNPROCESSABLE_ENTITY,
    ),
    "too-often": _M(
        "The caller asks too often, or has too many streams.",
        "wait as long as `Retry-After` says",
        HTTPStatus.TOO_MANY_REQUESTS,
    ),
    "defect": _M(
        "The gateway failed.",
        "this is a defect: report it with the gateway's log",
        HTTPStatus.INTERNAL_SERVER_ERROR,
    ),
    "unavailable": _M(
        "The fleet cannot be asked now.",
        "repeat it; `navarch status` shows what does not work",
        HTTPStatus.SERVICE_UNAVAILABLE,
    ),
}
"""Code of what fails without a decision of the fleet -> what it means."""
CATALOGUE: Final[Mapping[str, RefusalMeaning]] = {**REFUSALS, **FAILURES}
CODE_OF: Final[Mapping[int, str]] = {int(each.status): code for code, each in FAILURES.items()}
"""HTTP status -> the code of a problem that has no other."""


def exit_code(error: Exception) -> int:
    """Return the exit code of a command that ends with an error."""
    known = CATALOGUE.get(str(getattr(error, "code", "")))
    return known.exit_code if known is not None else REFUSED
