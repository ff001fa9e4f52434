"""A Docker engine as its published API description (1.41) has it, behind a socket, and strict.

The description (names and types, in `data/engine-api.json`) says which paths, methods, parameters
and fields there are; anything else is refused, where the real engine would overlook a field. What
it says in errors is what an engine 20.10 said. Faults are made to order.
"""

import asyncio
import io
import json
import re
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.serving import serving as serving_app

API = json.loads((Path(__file__).parent / "data" / "engine-api.json").read_text())
TYPES = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "object": dict,
    "array": list,
    "number": int,
}
IMAGES = {"navarch-node"}
NETWORKS = {"bridge"}

BROKEN = (500, "dial unix /run/containerd/containerd.sock: connect: no such file or directory")
NO_SPACE = (500, "failed to create shim task: mkdir /run/x: no space left on device")
NO_GPU = (500, 'could not select device driver "" with capabilities: [[gpu]]')
NO_COMMAND = (400, "OCI runtime create failed: exec: executable file not found in $PATH: unknown")


class EngineError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class DockerServer:
    """Serves the strict API of one engine."""

    def __init__(self) -> None:
        self.containers: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        """Method and path of every request, as the description writes them."""
        self.orders: list[tuple[str, tuple[int, str], bool]] = []
        """Call, answer, and whether the request takes effect all the same."""
        self.silent: set[str] = set()
        """Calls that take effect and are never answered."""
        self.latency_seconds = 0.0
        self.create_seconds = 0.0
        """So long is a name taken before its container is seen, as at a real engine."""
        self.taken: set[str] = set()
        self.oldest = "1.12"
        self.socket = ""

    def order(self, call: str, answer: tuple[int, str], *, after_success: bool = False) -> None:
        """Answer the next such call so."""
        self.orders.append((call, answer, after_success))

    def app(self) -> Starlette:
        """Everything is looked up in the description."""
        methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"]
        return Starlette(routes=[Route("/{path:path}", self._handle, methods=methods)])

    async def _handle(self, request: Request) -> Response:
        raw = await request.body()
        try:
            call, at, described = self._described(request)
            self.calls.append(call)
            await asyncio.sleep(self.latency_seconds)
            body = _checked(described, request, raw)
            if call == "POST /containers/create" and self.create_seconds:
                await self._take(request.query_params["name"])
            order = next((each for each in self.orders if each[0] == call), None)
            if order is None or order[2]:
                given = self._answer(call, at, dict(request.query_params), body)
                assert str(given.status_code) in described["responses"]
        except EngineError as error:
            return JSONResponse({"message": str(error)}, error.status)
        if order is not None:
            self.orders.remove(order)
            return JSONResponse({"message": order[1][1]}, order[1][0])
        if call in self.silent:
            await asyncio.Event().wait()
        return given

    async def _take(self, name: str) -> None:
        if name in self.taken:
            raise EngineError(409, f'Conflict. The container name "/{name}" is already in use')
        self.taken.add(name)
        await asyncio.sleep(self.create_seconds)
        self.taken.discard(name)

    def _described(self, request: Request) -> tuple[str, str, dict[str, Any]]:
        """Which call it is, of which container, and what is known of it."""
        path = request.url.path
        if path != "/version":
            version = re.match(r"/v(\d+)\.(\d+)/", path)
            oldest = tuple(int(each) for each in self.oldest.split("."))
            if version is None or tuple(map(int, version.groups())) < oldest:
                raise EngineError(400, f"client version is too old. Minimum is {self.oldest}")
            path = path[version.end() - 1 :]
        for known, methods in API["paths"].items():
            found = re.fullmatch(known.replace("{id}", "(?P<id>[^/]+)"), path)
            if found is not None and not (known.endswith("}/json") and path.endswith("rs/json")):
                described = methods.get(request.method.lower())
                if described is None:
                    raise EngineError(405, "method not allowed")
                at = found.groupdict().get("id", "")
                return f"{request.method} {known}", at, described
        raise EngineError(404, "page not found")

    def _answer(self, call: str, at: str, query: dict[str, str], body: Any) -> Response:
        match call:
            case "GET /version":
                return JSONResponse({"ApiVersion": "1.41", "MinAPIVersion": self.oldest})
            case "GET /containers/json":
                return JSONResponse(self._list(query))
            case "POST /containers/create":
                return self._create(query["name"], body)
            case "GET /containers/{id}/json":
                found = self._found(at)
                return JSONResponse({"Id": found["Id"], "Config": {"Labels": found["Labels"]}})
            case "PUT /containers/{id}/archive":
                with tarfile.open(fileobj=io.BytesIO(body)) as packed:
                    for each in packed:
                        held = packed.extractfile(each) if each.isfile() else None
                        if held is not None:
                            self._found(at)["files"][each.name] = held.read().decode()
                self._found(at)
                return Response(status_code=200)
            case "POST /containers/{id}/start":
                return self._start(self._found(at))
            case "DELETE /containers/{id}":
                return self._remove(self._found(at), query)
            case _:
                raise EngineError(501, f"{call} is not played here")

    def _found(self, at: str) -> dict[str, Any]:
        for each in self.containers.values():
            if at in (each["Id"], each["name"]):
                return each
        raise EngineError(404, f"No such container: {at}")

    def _list(self, query: dict[str, str]) -> list[dict[str, Any]]:
        filters = json.loads(query.get("filters", "{}"))
        assert set(filters) <= {"label"}
        shown = [
            each
            for each in self.containers.values()
            if query.get("all") == "true" or each["State"] == "running"
        ]
        return [
            {key: value for key, value in each.items() if key not in ("name", "files", "body")}
            for each in shown
            if all(label in each["Labels"] for label in filters.get("label", []))
        ]

    def _create(self, name: str, body: dict[str, Any]) -> Response:
        if name in (each["name"] for each in self.containers.values()):
            raise EngineError(409, f'Conflict. The container name "/{name}" is already in use')
        if body["Image"] not in IMAGES:
            raise EngineError(404, f"No such image: {body['Image']}:latest")
        ident = f"{len(self.calls):064x}"
        self.containers[ident] = {
            "Id": ident,
            "Names": [f"/{name}"],
            "Image": body["Image"],
            "State": "created",
            "Created": 1_795_000_000 + len(self.calls),
            "Labels": body["Labels"],
            "Ports": [],
            "NetworkSettings": {"Networks": {"bridge": {"IPAddress": ""}}},
            "name": name,
            "files": {},
            "body": body,
        }
        return JSONResponse({"Id": ident, "Warnings": []}, 201)

    def _start(self, found: dict[str, Any]) -> Response:
        network = found["body"]["HostConfig"]["NetworkMode"]
        if network not in NETWORKS:
            raise EngineError(404, f"network {network} not found")
        if found["State"] == "running":
            return Response(status_code=304)
        number = len(self.containers) + 1
        found["State"] = "running"
        found["NetworkSettings"]["Networks"]["bridge"]["IPAddress"] = f"172.17.0.{number}"
        for port, places in found["body"]["HostConfig"].get("PortBindings", {}).items():
            inside, kind = port.split("/")
            found["Ports"] = [
                {
                    "PrivatePort": int(inside),
                    "PublicPort": 32_768 + number,
                    "Type": kind,
                    "IP": place["HostIp"],
                }
                for place in places
            ]
        return Response(status_code=204)

    def _remove(self, found: dict[str, Any], query: dict[str, str]) -> Response:
        if found["State"] == "running" and query.get("force") != "true":
            raise EngineError(409, f"You cannot remove a running container {found['Id']}")
        del self.containers[found["Id"]]
        return Response(status_code=204)


def _checked(described: dict[str, Any], request: Request, raw: bytes) -> Any:
    """The body, once parameters and fields are known ones of the right type."""
    parameters = {each["name"]: each for each in described["parameters"]}
    for name, value in request.query_params.items():
        if parameters.get(name, {}).get("in") != "query":
            raise EngineError(400, f"unknown parameter {name}")
        if not re.search(parameters[name].get("pattern", ""), value):
            raise EngineError(400, f"{name}={value} is not allowed")
    wanted = next((each for each in parameters.values() if each["in"] == "body"), None)
    if wanted is None:
        if raw:
            raise EngineError(400, "a body where none is known")
        return None
    if wanted["name"] == "inputStream":
        return raw
    body = json.loads(raw)
    _check(wanted["schema"], body, "body")
    return body


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = dict(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        found |= _properties(_resolved(part))
    return found


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = API["definitions"][schema["$ref"].rpartition("/")[2]]
    return schema


def _check(schema: dict[str, Any], value: Any, at: str) -> None:
    """Raise where a value is not what the description has there."""
    schema = _resolved(schema)
    kind = "object" if "allOf" in schema else schema.get("type", "object")
    if not isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
        raise EngineError(400, f"{at} is not of type {kind}")
    if "enum" in schema and value not in schema["enum"]:
        raise EngineError(400, f"{at}: {value!r} is none of {schema['enum']}")
    if kind == "array":
        for each in value:
            _check(schema["items"], each, f"{at}[]")
    elif kind == "object":
        known, more = _properties(schema), schema.get("additionalProperties")
        for name, each in value.items():
            if name not in known and not isinstance(more, dict):
                raise EngineError(400, f"unknown field {at}.{name}")
            _check(known.get(name, more), each, f"{at}.{name}")


@asynccontextmanager
async def serving() -> AsyncIterator[DockerServer]:
    """Serve an engine behind a socket with a short path."""
    engine = DockerServer()
    with tempfile.TemporaryDirectory(prefix="nv") as folder:
        engine.socket = f"{folder}/d.sock"
        async with serving_app(engine.app(), engine.socket):
            yield engine
