"""Google's APIs over HTTP: one request, with a token, and every failure as a ProviderError."""

from typing import Any

import httpx

from services.provisioner.providers.cloud_tokens import CloudTokens
from services.provisioner.providers.gcp_errors import error_of
from services.provisioner.providers.provider_http import read_body, send


class GcpApi:
    """One API, whose tokens have one scope."""

    def __init__(
        self, client: httpx.AsyncClient, tokens: CloudTokens, url: str, timeout_seconds: float
    ) -> None:
        """`url`: what the paths of its calls continue."""
        self._client = client
        self._tokens = tokens
        self._url = url
        self._timeout = timeout_seconds

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        timeout_seconds: float = 0.0,
        **query: Any,
    ) -> Any:
        """Make one request, and return its answer."""
        token = await self._tokens.token()
        url = f"{self._url}/{path}".rstrip("/")
        answer = await send(
            self._client,
            method,
            path or url,
            url=url,
            params=query,
            json=body,
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout_seconds or self._timeout,
        )
        body_read = read_body(answer)
        if not answer.is_success:
            raise error_of(answer.status_code, body_read if isinstance(body_read, dict) else {})
        return body_read

    async def close(self) -> None:
        """Wait for no token any more."""
        await self._tokens.close()
