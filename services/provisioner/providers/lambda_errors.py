"""Maps Lambda Cloud's errors to kinds: one row for each documented code. Pure.

Source: the error bodies of Lambda's OpenAPI description (`{"error": {"code", "message",
"suggestion"}}`); its documentation says to branch on `code` alone.
"""

from typing import Final

import msgspec

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import (
    ErrorTable,
    ProviderError,
    unreadable,
)

KINDS: Final[dict[str, ProviderErrorKind]] = {
    "global/invalid-api-key": "AUTH",
    "global/account-inactive": "AUTH",
    "global/invalid-address": "AUTH",
    "global/quota-exceeded": "QUOTA",
    "provider/quota-exceeded": "QUOTA",
    "global/invalid-parameters": "INVALID",
    "global/object-does-not-exist": "INVALID",
    "global/internal-error": "TRANSIENT",
    "global/duplicate": "INVALID",
    "provider/internal-unavailable": "TRANSIENT",
    "provider/internal-unknown": "TRANSIENT",
    "instance-operations/launch/insufficient-capacity": "CAPACITY",
    "instance-operations/launch/file-system-in-wrong-region": "UNSUPPORTED",
}
"""Code -> kind."""
TABLE: Final = ErrorTable(codes=KINDS)


class _Error(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""
    suggestion: str = ""


class _Body(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def error_of(status: int, body: bytes, retry_after: float | None = None) -> ProviderError:
    """Return the error for an answer."""
    try:
        error = msgspec.json.decode(body, type=_Body).error
    except msgspec.DecodeError:
        error = _Error(message=unreadable(body))
    text = " ".join(part for part in (error.message, error.suggestion) if part)
    return TABLE.error(status, error.code, text, retry_after=retry_after)
