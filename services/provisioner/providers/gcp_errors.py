"""Maps Compute Engine's errors to kinds: one row for each code or reason. Pure.

An error comes in one of two forms: as an HTTP error with `errors[].reason`, or, after the request
was accepted, in the operation's `error.errors[].code`. Source: Compute Engine's troubleshooting
pages and the codes that public autoscalers handle.
"""

from typing import Any, Final

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import (
    COMMON_STATUSES,
    ErrorTable,
    ProviderError,
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
    "INSTANCES_WITHOUT_RESERVATION_NOT_SUPPORTED": "UNSUPPORTED",
    "MACHINE_TYPE_NOT_SUPPORTED": "UNSUPPORTED",
    "INSTANCE_SHOULD_BE_RUNNING": "TRANSIENT",
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
    "CONDITION_NOT_MET": "INVALID",
    "conditionNotMet": "INVALID",
}
"""Code or reason -> kind."""

RESERVATIONS: Final[tuple[tuple[str, ProviderErrorKind], ...]] = (
    ("does not have available resources for the request", "CAPACITY"),
    ("No available resources in specified reservations", "CAPACITY"),
    ("requires reservation to be in READY state", "CAPACITY"),
)
"""Part of a message -> kind: a full reservation, or one that does not hold anything yet, has the
same code as a wrong one."""

TABLE: Final = ErrorTable(
    codes=KINDS, statuses={**COMMON_STATUSES, 400: "INVALID"}, throttled_first=False
)


def error_of(status: int, body: Any) -> ProviderError:
    """Return the error for an HTTP error, by its first reason."""
    error = body.get("error", {})
    reason = (error.get("errors") or [{}])[0].get("reason", "")
    return _error(status, str(reason), str(error.get("message", "")))


def operation_error(operation: Any) -> ProviderError | None:
    """Return why a finished operation failed; None: it succeeded."""
    errors = (operation.get("error") or {}).get("errors") or []
    if not errors:
        return None
    # Of several, the first with a known code.
    first = next((each for each in errors if each.get("code") in KINDS), errors[0])
    return _error(0, str(first.get("code", "")), str(first.get("message", "")))


def _error(status: int, code: str, text: str) -> ProviderError:
    kind = next((kind for part, kind in RESERVATIONS if part in text), None)
    return TABLE.error(status, code, text, kind=kind)
