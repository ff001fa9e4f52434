"""What Compute Engine's errors mean here: one row for each code or reason. Pure.

A refusal comes in one of two forms: as an HTTP error with `errors[].reason`, or, after the request
was accepted, in the operation's `error.errors[].code`. Source: Compute Engine's troubleshooting
pages and the codes that public autoscalers have met in practice.
"""

from collections.abc import Mapping
from typing import Any, Final

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import (
    COMMON_STATUSES,
    SERVER_ERROR,
    TEXT_CHARS_MAX,
    ProviderError,
    unknown_code,
)

KINDS: Final[dict[str, ProviderErrorKind]] = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": "CAPACITY",
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": "CAPACITY",
    "RESOURCE_POOL_EXHAUSTED": "CAPACITY",
    "INSUFFICIENT_CAPACITY": "CAPACITY",
    "insufficientCapacity": "CAPACITY",
    "VM_MIN_COUNT_NOT_REACHED": "CAPACITY",
    "QUOTA_EXCEEDED": "QUOTA",
    "quotaExceeded": "QUOTA",
    "UNSUPPORTED_OPERATION": "UNSUPPORTED",
    "IP_SPACE_EXHAUSTED": "NETWORK",
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": "NETWORK",
    "VPC_NOT_FOUND": "INVALID",
    "SUBNET_NOT_FOUND_FOR_VPC": "INVALID",
    "rateLimitExceeded": "THROTTLE",
    "userRateLimitExceeded": "THROTTLE",
    "RATE_LIMIT_EXCEEDED": "THROTTLE",
    "RESOURCE_OPERATION_RATE_EXCEEDED": "THROTTLE",
    "INTERNAL_ERROR": "TRANSIENT",
    "backendError": "TRANSIENT",
    "internalError": "TRANSIENT",
    "RESOURCE_NOT_READY": "TRANSIENT",
    "authError": "AUTH",
    "forbidden": "AUTH",
    "accessNotConfigured": "AUTH",
    "IAM_PERMISSION_DENIED": "AUTH",
    "PERMISSIONS_ERROR": "AUTH",
    "required": "INVALID",
    "invalid": "INVALID",
    "badRequest": "INVALID",
    "notFound": "INVALID",
    "RESOURCE_NOT_FOUND": "INVALID",
    "alreadyExists": "INVALID",
}
"""Code or reason -> kind."""

STATUSES: Final[Mapping[int, ProviderErrorKind]] = {
    **COMMON_STATUSES,
    400: "INVALID",
}
"""HTTP status -> kind, where no reason is known."""


def reason_of(body: Any) -> str:
    """The first reason in an HTTP error's body."""
    errors = body.get("error", {}).get("errors") or [{}]
    return str(errors[0].get("reason", ""))


def error_of(status: int, body: Any) -> ProviderError:
    """What an HTTP error stands for; what is not known is TRANSIENT and says its reason."""
    reason = reason_of(body)
    kind = KINDS.get(reason) or STATUSES.get(status) or "TRANSIENT"
    text = str(body.get("error", {}).get("message", ""))[:TEXT_CHARS_MAX]
    known = reason in KINDS or status in STATUSES or status >= SERVER_ERROR
    by_status = status in STATUSES and not reason
    return ProviderError(
        kind,
        _said(f"HTTP {status} {reason}".strip(), text, known=known),
        unknown=unknown_code(reason, status, known=reason in KINDS or by_status),
    )


def operation_error(operation: Any) -> ProviderError | None:
    """What a finished operation failed of; None: it did not."""
    errors = (operation.get("error") or {}).get("errors") or []
    if not errors:
        return None
    # Of several, the one that says more than that something went wrong.
    first = next((each for each in errors if each.get("code") in KINDS), errors[0])
    code = str(first.get("code", ""))
    text = str(first.get("message", ""))[:TEXT_CHARS_MAX]
    known = code in KINDS
    return ProviderError(
        KINDS.get(code, "TRANSIENT"),
        _said(code, text, known=known),
        unknown="" if known else code,
    )


def _said(code: str, text: str, *, known: bool) -> str:
    return f"{code}: {text}" + ("" if known else " (a code that is not known here)")
