"""Lambda Cloud's API v1 as its OpenAPI description has it, on a free port, and strict.

What the description does not know is refused: an unknown path, method or field, a missing one, a
wrong key, requests that come faster than the documented rate. Faults are made to order.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.serving import serving as serving_app

KEY = "secret_test"
REQUIRED = {"region_name", "instance_type_name", "ssh_key_names"}
KNOWN = REQUIRED | {
    "file_system_names",
    "file_system_mounts",
    "hostname",
    "name",
    "image",
    "user_data",
    "tags",
    "firewall_rulesets",
}
PRICES = {"gpu_8x_h100_sxm5": 2392, "gpu_1x_a10": 75, "h100": 299}
REGIONS = {"us-west-2", "us-east-1"}
NAME_CHARS_MAX = 64

CAPACITY = (400, "instance-operations/launch/insufficient-capacity")
QUOTA = (400, "global/quota-exceeded")
BROKEN = (500, "global/internal-error")
THROTTLED = (429, "")
BAD_KEY = (401, "global/invalid-api-key")


def failure(status: int, code: str, message: str = "") -> Response:
    """An error as the API words it."""
    body = {"error": {"code": code, "message": message or code, "suggestion": ""}}
    headers = {"Retry-After": "1"} if status == THROTTLED[0] else {}
    return JSONResponse(body, status_code=status, headers=headers)


class LambdaServer:
    """Serves the strict API of one account at Lambda."""

    def __init__(self) -> None:
        self.instances: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, float]] = []
        """Path and moment of every request."""
        self.orders: list[tuple[str, tuple[int, str], bool]] = []
        """Path, answer, and whether the request takes effect all the same."""
        self.having: dict[str, tuple[str, ...]] = {}
        """Type -> regions that are said to have it."""
        self.silent: set[str] = set()
        """Paths whose requests take effect and are never answered."""
        self.url = ""

    def order(self, path: str, answer: tuple[int, str], *, after_success: bool = False) -> None:
        """Answer the next request to this path so."""
        self.orders.append((path, answer, after_success))

    def called(self, path: str) -> int:
        """Return how often a path was requested."""
        return sum(each == path for each, _ in self.calls)

    def app(self) -> Starlette:
        """The routes that are used; any other is 404, any other method 405."""
        routes = [
            Route("/api/v1/instances", self._wrap(self._list), methods=["GET"]),
            Route("/api/v1/instance-types", self._wrap(self._types), methods=["GET"]),
            Route("/api/v1/instance-operations/launch", self._wrap(self._launch), methods=["POST"]),
            Route(
                "/api/v1/instance-operations/restart",
                self._wrap(self._restart),
                methods=["POST"],
            ),
            Route(
                "/api/v1/instance-operations/terminate",
                self._wrap(self._terminate),
                methods=["POST"],
            ),
        ]
        return Starlette(routes=routes)

    def _wrap(self, answer: Callable[[Any], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            path = request.url.path.removeprefix("/api/v1")
            self.calls.append((path, asyncio.get_running_loop().time()))
            if request.headers.get("Authorization") != f"Bearer {KEY}":
                return failure(*BAD_KEY)
            raw = await request.body()
            order = next((each for each in self.orders if each[0] == path), None)
            if order is not None:
                self.orders.remove(order)
                if order[2]:
                    answer(json.loads(raw) if raw else None)
                return failure(*order[1])
            given = answer(json.loads(raw) if raw else None)
            if path in self.silent:
                await asyncio.Event().wait()
            return given

        return handle

    def _list(self, body: Any) -> Response:
        assert body is None
        return JSONResponse({"data": list(self.instances.values())})

    def _types(self, body: Any) -> Response:
        assert body is None
        specs = {"vcpus": 208, "memory_gib": 1800, "storage_gib": 22_000, "gpus": 8}
        names = self.having.get
        found = {
            name: {
                "instance_type": {
                    "name": name,
                    "description": "GPUs",
                    "gpu_description": "H100 (80 GB SXM5)",
                    "price_cents_per_hour": cents,
                    "specs": specs,
                },
                "regions_with_capacity_available": [
                    {"name": region, "description": "Somewhere"} for region in names(name, ())
                ],
            }
            for name, cents in PRICES.items()
        }
        return JSONResponse({"data": found})

    def _launch(self, body: Any) -> Response:
        problem = _problem(body)
        if problem:
            return failure(400, "global/invalid-parameters", problem)
        ident = f"{len(self.calls):032x}"
        self.instances[ident] = {
            "id": ident,
            "name": body.get("name"),
            "status": "booting",
            "ssh_key_names": body["ssh_key_names"],
            "file_system_names": body.get("file_system_names", []),
            "region": {"name": body["region_name"], "description": "Somewhere"},
            "instance_type": {
                "name": body["instance_type_name"],
                "description": "GPUs",
                "price_cents_per_hour": PRICES[body["instance_type_name"]],
            },
            "tags": body.get("tags", []),
        }
        return JSONResponse({"data": {"instance_ids": [ident]}})

    def _restart(self, body: Any) -> Response:
        if set(body) != {"instance_ids"}:
            return failure(400, "global/invalid-parameters", "instance_ids, and nothing else")
        if not set(body["instance_ids"]) <= set(self.instances):
            return failure(404, "global/object-does-not-exist")
        again = [self.instances[each] for each in body["instance_ids"]]
        return JSONResponse({"data": {"restarted_instances": again}})

    def _terminate(self, body: Any) -> Response:
        if set(body) != {"instance_ids"}:
            return failure(400, "global/invalid-parameters", "instance_ids, and nothing else")
        for ident in body["instance_ids"]:
            if ident not in self.instances:
                return failure(404, "global/object-does-not-exist")
        gone = [self.instances.pop(ident) for ident in body["instance_ids"]]
        return JSONResponse({"data": {"terminated_instances": gone}})

    def boot(self) -> None:
        """Let every instance come up."""
        for number, each in enumerate(self.instances.values()):
            each |= {"status": "active", "ip": f"192.0.2.{number + 1}"}


def _problem(body: dict[str, Any]) -> str:
    """What is wrong with a launch; empty: nothing."""
    if REQUIRED - set(body) or set(body) - KNOWN:
        return f"fields: {sorted(set(body) ^ REQUIRED)}"
    if len(body["ssh_key_names"]) != 1:
        return "exactly one SSH key"
    if body["region_name"] not in REGIONS or body["instance_type_name"] not in PRICES:
        return "unknown region or type"
    if len(body.get("name", "")) > NAME_CHARS_MAX:
        return "name too long"
    if any(set(tag) != {"key", "value"} for tag in body.get("tags", [])):
        return "tags are key and value"
    return ""


@asynccontextmanager
async def serving() -> AsyncIterator[LambdaServer]:
    """Serve the API on loopback."""
    api = LambdaServer()
    async with serving_app(api.app()) as url:
        api.url = f"{url}/api/v1"
        yield api
