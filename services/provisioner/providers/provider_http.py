"""HTTP calls of providers: missing and unreadable answers are TRANSIENT errors."""

from typing import Any, TypeVar

import httpx
import msgspec

from services.primitives.backoff import retry_after_seconds
from services.primitives.redaction import public_url
from services.provisioner.provider_client.provider_errors import ProviderError, unreadable
from services.runtime.bounded_http import failure_text

T = TypeVar("T")


async def send(
    client: httpx.AsyncClient, method: str, path: str, *, url: str = "", **request: Any
) -> httpx.Response:
    """Send one request; TRANSIENT without an answer. `url`: where it differs from the path."""
    try:
        return await client.request(method, url or path, **request)
    except httpx.HTTPError as error:
        shown = path if path.startswith("/") else public_url(path)
        raise ProviderError("TRANSIENT", f"{method} {shown}: {failure_text(error)}") from error


def decode(answer: httpx.Response, kind: type[T], what: str) -> T:
    """Decode a successful answer; TRANSIENT if it cannot be read."""
    try:
        return msgspec.json.decode(answer.content or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise ProviderError("TRANSIENT", f"{what}: unreadable answer: {error}") from error


def convert(answer: Any, kind: type[T]) -> T:
    """An answer that has been decoded, as a type; TRANSIENT where it has other contents."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise ProviderError("TRANSIENT", f"unreadable answer: {error}") from error


def read_body(answer: httpx.Response) -> Any:
    """Decode an answer; of an error that is no JSON only the length is kept.

    TRANSIENT if a successful answer cannot be decoded.
    """
    try:
        return msgspec.json.decode(answer.content or b"{}")
    except msgspec.DecodeError as error:
        if answer.is_success:
            raise ProviderError("TRANSIENT", f"unreadable answer: {error}") from error
        text = unreadable(answer.content)
        return {"message": text, "error": {"message": text}}


def retry_after(answer: httpx.Response) -> float | None:
    """Return the seconds to wait that the answer names; None: it names none."""
    return retry_after_seconds(answer.headers.get("Retry-After", "")) or None
