"""HTTP calls of providers: what every provider does about missing and unreadable answers."""

from typing import Any, TypeVar

import httpx
import msgspec

from services.provisioner.provider_client.provider_errors import ProviderError

T = TypeVar("T")


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


def retry_after(answer: httpx.Response) -> float | None:
    """Return how many seconds the answer asks to wait; None if it names none."""
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None
