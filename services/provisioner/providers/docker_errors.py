"""Maps a Docker engine's errors to kinds: by phrases of the message, then by HTTP status. Pure.

The engine has no error codes: its body is `{"message": …}`, and much that an operator or another
host could resolve arrives as a plain 500. So a few phrases from its source come first.
"""

from typing import Final

import msgspec

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import (
    COMMON_STATUSES,
    ErrorTable,
    ProviderError,
    unreadable,
)

PHRASES: Final[dict[str, ProviderErrorKind]] = {
    "no such image": "INVALID",
    "invalid reference format": "INVALID",
    "executable file not found": "INVALID",
    "unknown or invalid runtime name": "INVALID",
    "could not select device driver": "UNSUPPORTED",
    "nvidia-container-cli": "UNSUPPORTED",
    "no space left on device": "CAPACITY",
    "cannot allocate memory": "CAPACITY",
    "no available ipv4 addresses": "CAPACITY",
    "port is already allocated": "CAPACITY",
    "too many requests": "THROTTLE",
}
"""Phrase, in lower case -> kind; the first that is found counts."""
TABLE: Final = ErrorTable(
    codes={},
    statuses={**COMMON_STATUSES, 400: "INVALID", 409: "TRANSIENT"},
    throttled_first=False,
)


class _Body(msgspec.Struct, frozen=True):
    message: str = ""


def error_of(status: int, body: bytes) -> ProviderError:
    """Return the error for an answer."""
    try:
        message = msgspec.json.decode(body, type=_Body).message
    except msgspec.DecodeError:
        message = unreadable(body)
    text = " ".join(message.split())
    lowered = text.lower()
    kind = next((kind for phrase, kind in PHRASES.items() if phrase in lowered), None)
    return TABLE.error(status, "", text, kind=kind)
