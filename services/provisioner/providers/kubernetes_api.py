"""Requests to a Kubernetes API as every provider makes them: each failure is a ProviderError."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

import msgspec

from services.provisioner.provider_client.provider_errors import ProviderError, none_if
from services.provisioner.providers.kubernetes_errors import error_of
from services.workload_systems.cluster_access import ClusterAccess
from services.workload_systems.kubernetes_client import KubernetesClient, KubernetesError

NODES: Final = "/api/v1/nodes"


class KubernetesApi:
    """One cluster's API."""

    def __init__(self, access: ClusterAccess, timeout_seconds: float) -> None:
        """Connect at the first request; ConfigurationError where that could not work."""
        access.check()
        self._client = KubernetesClient(access, timeout_seconds=timeout_seconds)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def pages(self, path: str, selector: str) -> list[Any]:
        """Every object with these labels, from all pages."""
        found: list[Any] = []
        with _provider_errors(f"GET {path}"):
            async for page in self._client.pages(path, labelSelector=selector):
                if page.items is None:
                    raise ProviderError("TRANSIENT", f"GET {path}: the answer is not a list")
                found += map(msgspec.json.decode, page.items)
        return found

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Make one request."""
        with _provider_errors(f"{method} {path}"):
            answer = await self._client.call(method, path, body=body, query=query)
            return msgspec.json.decode(answer or b"{}", type=dict[str, Any])

    async def delete(self, path: str, *, uid: str = "") -> bool:
        """Begin to delete an object; with a uid only if it has that one. False: there is none."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        body |= {"preconditions": {"uid": uid}} if uid else {}
        gone = (HTTPStatus.NOT_FOUND, *([HTTPStatus.CONFLICT] if uid else []))
        return await none_if(self.call("DELETE", path, body=body), *gone) is not None


@contextmanager
def _provider_errors(call: str) -> Iterator[None]:
    try:
        yield
    except KubernetesError as error:
        raise error_of(error.status, error.reason, error.message, error.retry_after) from error
    except (TimeoutError, OSError) as error:
        raise ProviderError("TRANSIENT", f"{call}: {str(error) or 'no answer'}") from error
    except ValueError as error:  # msgspec's are such
        raise ProviderError("TRANSIENT", f"{call}: unreadable answer: {error}") from error
