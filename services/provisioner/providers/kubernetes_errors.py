"""Maps errors of the Kubernetes API to kinds, by the reason in its Status. Pure.

Source: the reasons in Kubernetes' API machinery.
"""

from typing import Final

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import (
    COMMON_STATUSES,
    ErrorTable,
    ProviderError,
)

REASONS: Final[dict[str, ProviderErrorKind]] = {
    "Unauthorized": "AUTH",
    "Forbidden": "AUTH",
    "AlreadyExists": "INVALID",
    "BadRequest": "INVALID",
    "Invalid": "INVALID",
    "MethodNotAllowed": "INVALID",
    "NotAcceptable": "INVALID",
    "NotFound": "INVALID",
    "RequestEntityTooLarge": "INVALID",
    "UnsupportedMediaType": "INVALID",
    "TooManyRequests": "THROTTLE",
    "Conflict": "TRANSIENT",
    "Expired": "TRANSIENT",
    "Gone": "TRANSIENT",
    "InternalError": "TRANSIENT",
    "ServerTimeout": "TRANSIENT",
    "ServiceUnavailable": "TRANSIENT",
    "StoreReadError": "TRANSIENT",
    "Timeout": "TRANSIENT",
}
"""Reason of a Status -> kind."""

TABLE: Final = ErrorTable(
    codes=REASONS,
    statuses={**COMMON_STATUSES, 400: "INVALID", 409: "TRANSIENT", 422: "INVALID"},
)
QUOTA: Final = "exceeded quota"
"""In the message of a spent Kubernetes quota, under the reason Forbidden."""


def error_of(
    status: int, reason: str, text: str, retry_after: float | None = None
) -> ProviderError:
    """Return the error for an HTTP error."""
    kind: ProviderErrorKind | None = "QUOTA" if QUOTA in text else None
    return TABLE.error(status, reason, text, kind=kind, retry_after=retry_after)
