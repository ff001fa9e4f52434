"""The requests of the Docker Engine API that the provider makes, over the engine's socket.

Requests name a version of the API that the engine supports. Each lists the statuses that are
results (removed or running already); every other answer is a ProviderError.
"""

import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import httpx
import msgspec

from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.docker_errors import error_of
from services.provisioner.providers.provider_http import decode, read_body
from services.runtime.bounded_http import bounded_client, failure_text

API_VERSION: Final = (1, 41)
"""Of Docker 20.10; a newer engine without it is addressed in the oldest version it supports."""


class Address(msgspec.Struct, frozen=True):
    """Holds a container's address in one network."""

    ip: str = msgspec.field(name="IPAddress", default="")


class Networks(msgspec.Struct, frozen=True):
    """Holds a container's networks by name."""

    networks: dict[str, Address] | None = msgspec.field(name="Networks", default=None)


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A container's port, and where the host publishes it."""

    inside: int = msgspec.field(name="PrivatePort")
    outside: int = msgspec.field(name="PublicPort", default=0)
    ip: str = msgspec.field(name="IP", default="")


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the used fields of a listed container."""

    id: str = msgspec.field(name="Id")
    names: tuple[str, ...] = msgspec.field(name="Names", default=())
    state: str = msgspec.field(name="State")
    created: int = msgspec.field(name="Created", default=0)
    labels: dict[str, str] | None = msgspec.field(name="Labels", default=None)
    ports: tuple[Port, ...] | None = msgspec.field(name="Ports", default=None)
    network: Networks = msgspec.field(name="NetworkSettings", default=Networks())

    def label(self, name: str) -> str:
        """Return a label; empty if it has none of that name."""
        return (self.labels or {}).get(name, "")

    def address(self, port: int) -> str:
        """Return where the host publishes a port of it, else its own address."""
        for each in self.ports or ():
            if each.inside == port and each.outside:
                return f"{f'[{each.ip}]' if ':' in each.ip else each.ip}:{each.outside}"
        return next((each.ip for each in (self.network.networks or {}).values() if each.ip), "")


class _Created(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="Id")


class _Version(msgspec.Struct, frozen=True):
    oldest: str = msgspec.field(name="MinAPIVersion", default="")


ENGINE: Final = "the Docker engine"


class Engine:
    """Calls the API of one Docker engine."""

    def __init__(
        self,
        socket: str,
        timeout_seconds: float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._socket = socket
        self._prefix = ""
        self._client = bounded_client(
            base_url="http://docker",
            timeout=timeout_seconds,
            transport=transport or httpx.AsyncHTTPTransport(uds=socket),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def containers(self, label: str) -> list[Container]:
        """Return every container with this label, in any state."""
        params = {"all": "true", "filters": json.dumps({"label": [label]})}
        answer = await self._ask("GET", "/containers/json", (200,), params=params)
        return decode(answer, list[Container], ENGINE)

    async def create(self, name: str, body: dict[str, Any]) -> str | None:
        """Create a container; return its ID, or None if the name is taken."""
        answer = await self._ask(
            "POST", "/containers/create", (201, 409), params={"name": name}, json=body
        )
        return (
            None
            if answer.status_code == HTTPStatus.CONFLICT
            else decode(answer, _Created, ENGINE).id
        )

    async def labels(self, name: str) -> Mapping[str, str] | None:
        """Return the labels of the container of this name; None if there is none."""
        answer = await self._ask("GET", f"/containers/{name}/json", (200, 404))
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        return (read_body(answer).get("Config") or {}).get("Labels") or {}

    async def unpack(self, ident: str, archive: bytes) -> bool:
        """Copy files into a container; False if it is gone."""
        path = f"/containers/{ident}/archive"
        answer = await self._ask("PUT", path, (200, 404), params={"path": "/"}, content=archive)
        return _exists(answer)

    async def start(self, ident: str) -> bool:
        """Start a container, unless it is running (304); False if it is gone."""
        return _exists(await self._ask("POST", f"/containers/{ident}/start", (204, 304, 404)))

    async def remove(self, ident: str, *, force: bool) -> bool:
        """Remove it and its anonymous volumes; success if it is gone.

        False (409): another replica is removing it, or it runs and no force is used.
        """
        params = {"v": "true"} | ({"force": "true"} if force else {})
        path = f"/containers/{ident}"
        answer = await self._ask("DELETE", path, (204, 404, 409), params=params)
        return answer.status_code != HTTPStatus.CONFLICT

    async def _ask(
        self, method: str, path: str, good: tuple[int, ...], **more: Any
    ) -> httpx.Response:
        """Make a request in a supported version; raise unless its status is `good`."""
        if not self._prefix:
            version = await self._send("GET", "/version")
            if version.status_code != HTTPStatus.OK:
                raise error_of(version.status_code, version.content)
            self._prefix = _prefix(decode(version, _Version, ENGINE).oldest)
        answer = await self._send(method, f"{self._prefix}{path}", **more)
        if answer.status_code not in good:
            raise error_of(answer.status_code, answer.content)
        return answer

    async def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return await self._client.request(method, path, **more)
        except httpx.HTTPError as error:
            what = failure_text(error)
            if os.access(self._socket, os.F_OK) and not os.access(self._socket, os.W_OK):
                raise ProviderError(
                    "AUTH",
                    f"permission denied for {self._socket}: add the provisioner's user to the "
                    "group that owns it",
                ) from error
            raise ProviderError(
                "TRANSIENT",
                f"no answer of the Docker engine at {self._socket} to {method} {path}: {what}",
            ) from error


def _exists(answer: httpx.Response) -> bool:
    """Whether the container exists; raise if something else was not found."""
    if answer.status_code != HTTPStatus.NOT_FOUND:
        return True
    error = error_of(answer.status_code, answer.content)
    if "no such container" not in error.message.lower():
        raise error
    return False


def _prefix(oldest: str) -> str:
    numbers = tuple(int(each) for each in oldest.split(".") if each.isdigit())
    major, minor = max(API_VERSION, numbers) if len(numbers) == len(API_VERSION) else API_VERSION
    return f"/v{major}.{minor}"
