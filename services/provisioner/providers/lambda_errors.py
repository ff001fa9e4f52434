"""What Lambda Cloud's errors mean here: one row for each documented code. Pure.

Source: the error bodies of Lambda's OpenAPI description (`{"error": {"code", "message",
"suggestion"}}`); its documentation says to branch on `code` alone.
"""

from typing import Final

import msgspec

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import (
    COMMON_STATUSES,
    SERVER_ERROR,
    TEXT_CHARS_MAX,
    THROTTLED,
    ProviderError,
    unknown_code,
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


class _Error(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""
    suggestion: str = ""


class _Body(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def error_of(status: int, body: bytes, retry_after: float | None = None) -> ProviderError:
    """The error that an answer stands for; what is not known is TRANSIENT and says its code."""
    try:
        said = msgspec.json.decode(body, type=_Body).error
    except msgspec.DecodeError:
        said = _Error(message=body.decode(errors="replace"))
    throttled = status == THROTTLED
    kind = KINDS.get(said.code) or COMMON_STATUSES.get(status) or "TRANSIENT"
    if throttled:
        kind = "THROTTLE"
    known = said.code in KINDS or status in COMMON_STATUSES or status >= SERVER_ERROR
    text = " ".join(part for part in (said.code, said.message, said.suggestion) if part)
    note = "" if known else " (a code that is not known here)"
    by_status = status in COMMON_STATUSES and (throttled or not said.code)
    return ProviderError(
        kind,
        f"HTTP {status}: {text[:TEXT_CHARS_MAX]}{note}",
        retry_after=retry_after,
        unknown=unknown_code(said.code, status, known=said.code in KINDS or by_status),
    )
