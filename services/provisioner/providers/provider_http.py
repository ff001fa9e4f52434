"""HTTP calls of providers: missing and unreadable answers are TRANSIENT errors."""

from typing import Any, Final, TypeVar

import httpx
import msgspec

from services.provisioner.provider_client.provider_errors import ProviderError

T = TypeVar("T")

TEXT_CHARS_MAX: Final = 200


async def send(
    client: httpx.AsyncClient, method: str, path: str, *, url: str = "", **request: Any
) -> httpx.Response:
    """Send one request; TRANSIENT without an answer. `url`: where it differs from the path."""
    try:
        return await client.request(method, url or path, **request)
    except httpx.HTTPError as error:
        what = str(error) or type(error).__name__
        raise ProviderError("TRANSIENT", f"{method} {path}: {what}") from error


def decode(answer: httpx.Response, kind: type[T], what: str) -> T:
    """Decode a successful answer; TRANSIENT if it cannot be read."""
    try:
        return msgspec.json.decode(answer.content or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise ProviderError("TRANSIENT", f"{what}: unreadable answer: {error}") from error


def read_body(answer: httpx.Response) -> Any:
    """Decode an answer; the body of an error may be plain text.

    TRANSIENT if a successful answer cannot be decoded.
    """
    try:
        return msgspec.json.decode(answer.content or b"{}")
    except msgspec.DecodeError as error:
        if answer.is_success:
            raise ProviderError("TRANSIENT", f"unreadable answer: {error}") from error
        text = answer.text[:TEXT_CHARS_MAX]
        return {"message": text, "error": {"message": text}}


def retry_after(answer: httpx.Response) -> float | None:
    """Return the seconds to wait that the answer names; None: it names none."""
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None
