"""Requests to a Kubernetes API as every provider makes them: bounded, and each failure an error."""

from http import HTTPStatus
from typing import Any, Final

import httpx

from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.kubernetes_access import ClusterAccess
from services.provisioner.providers.kubernetes_errors import error_of
from services.provisioner.providers.provider_http import read_body, retry_after, send
from services.runtime.bounded_http import bounded_client

NODES: Final = "/api/v1/nodes"
PAGE: Final = 100
"""Objects of one answer: a node with its list of images has 30 KB."""
PAGES_MAX: Final = 10_000


class KubernetesApi:
    """One cluster's API."""

    def __init__(
        self,
        access: ClusterAccess,
        timeout_seconds: float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect at the first request."""
        self._access = access
        self._client = bounded_client(
            base_url=access.server,
            verify=access.verify(),
            timeout=timeout_seconds,
            transport=transport,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def pages(self, path: str, selector: str) -> list[Any]:
        """Every object with these labels, from all pages."""
        found: list[Any] = []
        query = {"labelSelector": selector, "limit": str(PAGE)}
        for _ in range(PAGES_MAX):
            page = await self.call("GET", path, query=query)
            if not isinstance(page.get("items"), list):
                raise ProviderError("TRANSIENT", f"GET {path}: the answer is not a list")
            found += page["items"]
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return found
            query |= {"continue": more}
        raise ProviderError("TRANSIENT", f"GET {path}: the list does not end")

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        query: dict[str, str] | None = None,
    ) -> Any:
        """Make one request; every failure is a ProviderError."""
        # Of a pod's service account the kubelet renews the token.
        headers = {"Authorization": f"Bearer {self._access.current_token()}"}
        answer = await send(self._client, method, path, params=query, json=body, headers=headers)
        found = read_body(answer)
        if not answer.is_success:
            raise error_of(answer.status_code, found, retry_after(answer))
        if not isinstance(found, dict):
            raise ProviderError("TRANSIENT", f"{method} {path}: the answer is not an object")
        return found

    async def delete(self, path: str, *, uid: str = "") -> bool:
        """Begin to delete an object; with a uid only if it has that one. False: there is none."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        body |= {"preconditions": {"uid": uid}} if uid else {}
        gone = {HTTPStatus.NOT_FOUND, *([HTTPStatus.CONFLICT] if uid else [])}
        try:
            await self.call("DELETE", path, body=body)
        except ProviderError as error:
            if error.status in gone:
                return False
            raise
        return True
