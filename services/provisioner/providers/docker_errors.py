"""What the errors of a Docker engine mean here: by what it says, then by HTTP status. Pure.

The engine has no error codes: its body is `{"message": …}`, and much that a person or another host
could put right arrives as a plain 500. So a few phrases come first, as they stand in its source.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import (
    COMMON_STATUSES,
    SERVER_ERROR,
    TEXT_CHARS_MAX,
    ProviderError,
    unknown_code,
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
"""Phrase, in small letters -> kind; the first that is found counts."""

STATUSES: Final[Mapping[int, ProviderErrorKind]] = {
    **COMMON_STATUSES,
    400: "INVALID",
    409: "TRANSIENT",
}
"""HTTP status -> kind, where no phrase is known."""


class _Body(msgspec.Struct, frozen=True):
    message: str = ""


def message_of(body: bytes) -> str:
    """What the engine says."""
    try:
        return msgspec.json.decode(body, type=_Body).message
    except msgspec.DecodeError:
        return body.decode(errors="replace")


def error_of(status: int, body: bytes) -> ProviderError:
    """The error that an answer stands for; what is not known is TRANSIENT and says so."""
    text = " ".join(message_of(body).split())
    small = text.lower()
    said = next((kind for phrase, kind in PHRASES.items() if phrase in small), None)
    kind = said or STATUSES.get(status) or "TRANSIENT"
    known = said is not None or status in STATUSES or status >= SERVER_ERROR
    note = "" if known else " (a status that is not known here)"
    # The engine has no codes: a status stands for one.
    unknown = unknown_code("", status, known=known)
    return ProviderError(kind, f"HTTP {status}: {text[:TEXT_CHARS_MAX]}{note}", unknown=unknown)
