"""A CKS cluster's API as CoreWeave and Kubernetes document it, on a free port, and strict.

`data/coreweave.json` is the published schema of a node pool; paths, parameters, labels, names, list
pages and refusals are Kubernetes'. Anything else is refused. A pool's node comes at once, unless it
must wait; faults are injected.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.serving import serving as serving_app

CRD = json.loads((Path(__file__).parent / "data" / "coreweave.json").read_text())
KIND = f"{CRD['group']}/{CRD['version']}"
POOLS = f"/apis/{KIND}/{CRD['plural']}"
TOKEN = "CW-SECRET-test"
PAGE_MAX = 4
"""Of a list, however much is asked for; small, so that there are several."""
TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
METADATA = {"name", "labels", "annotations"}
GOOD = {"Validated": "Valid", "Capacity": "Sufficient", "Quota": "Under"}
CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    422: "Invalid",
}


class RefusalError(Exception):
    """An answer that is an error, as Kubernetes words it."""

    def __init__(self, code: int, message: str, reason: str = "", wait: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": reason or CODES.get(code, ""),
            "message": message,
            "code": code,
        }
        if wait:
            self.body["details"] = {"retryAfterSeconds": wait}

    @property
    def answer(self) -> Response:
        """Return the refusal as an HTTP response."""
        return JSONResponse(self.body, self.code)


class CoreWeaveServer:
    """Serves the strict API of one cluster."""

    def __init__(self) -> None:
        self.pools: dict[str, dict[str, Any]] = {}
        self.nodes: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.calls: list[str] = []
        """Verb and kind of each request."""
        self.refusals: list[tuple[str, RefusalError, bool]] = []
        """Call, answer, and whether the request takes effect all the same."""
        self.conditions: list[dict[str, str]] = []
        """Of the next pools: what is said of each instead of that all is well."""
        self.removals: list[str] = []
        """The uid of each removal; empty: any."""
        self.silent: set[str] = set()
        """Calls that take effect and are never answered."""
        self.waiting = False
        """No pool gets its node, nor a word on whether it will."""
        self.slow_removals = 0
        """So many looks at a pool that is removed find it still."""
        self.latency = 0.0
        self.made = 0
        self.url = ""

    def refuse(
        self, call: str, code: int, reason: str, *, after_success: bool = False, wait: int = 0
    ) -> None:
        """Answer the next such call so."""
        self.refusals.append((call, RefusalError(code, reason, reason, wait), after_success))

    def app(self) -> Starlette:
        """Return the application that answers every path."""
        verbs = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        return Starlette(routes=[Route("/{path:path}", self._api, methods=verbs)])

    async def _api(self, request: Request) -> Response:
        raw = await request.body()
        await asyncio.sleep(self.latency)
        try:
            _check_token(request)
            call, name = _call_of(request)
            self.calls.append(call)
            body = json.loads(raw) if raw else None
            answer = self._ordered(call, name, request, body)
        except RefusalError as error:
            return error.answer
        if call in self.silent:
            await asyncio.Event().wait()
        return answer

    def _ordered(self, call: str, name: str, request: Request, body: Any) -> Response:
        """What was ordered for this call, or else what it does."""
        order = next((each for each in self.refusals if each[0] == call), None)
        if order is None:
            return self._answer(call, name, request, body)
        self.refusals.remove(order)
        if order[2]:
            self._answer(call, name, request, body)
        raise order[1]

    def _answer(self, call: str, name: str, request: Request, body: Any) -> Response:
        match call:
            case "POST nodepools":
                return self._create(request, body)
            case "GET nodepool":
                return JSONResponse(self._look(name))
            case "DELETE nodepool":
                return self._delete(name, body)
            case "GET nodepools":
                for each in list(self.pools):
                    self._look(each, listing=True)
                return _page(request, "NodePoolList", self.pools)
            case "GET node":
                if name not in self.nodes:
                    raise RefusalError(404, f'nodes "{name}" not found')
                return JSONResponse(self.nodes[name])
            case "POST tokenreview":
                return JSONResponse(self._review(body), 201)
            case "GET nodes":
                return _page(request, "NodeList", self.nodes)
            case _:
                return self._events(request)

    def _review(self, body: Any) -> dict[str, Any]:
        """Of a pod's token, which here says on which host the pod is."""
        known = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
        if body != known | {"spec": {"token": body["spec"]["token"], "audiences": ["navarch"]}}:
            raise RefusalError(400, "no TokenReview")
        host = body["spec"]["token"].removeprefix("pod on ")
        account = "system:serviceaccount:navarch-agents:navarch-agent"
        extra = {"authentication.kubernetes.io/node-name": [host]}
        user = {"username": account, "extra": extra}
        authenticated = body["spec"]["token"].startswith("pod on ")
        status = {"authenticated": authenticated, "audiences": ["navarch"], "user": user}
        return body | {"status": status}

    # --- pools -----------------------------------------------------------------------------------

    def _create(self, request: Request, body: Any) -> Response:
        strict = request.query_params.get("fieldValidation") == "Strict"
        assert strict, "without it a field that is misspelt is dropped, not refused"
        _check_pool(body)
        name = body["metadata"]["name"]
        if name in self.pools:
            raise RefusalError(409, f'nodepools "{name}" already exists', "AlreadyExists")
        self.made += 1
        metadata = {"uid": f"uid-{self.made}", "creationTimestamp": "2026-11-01T10:00:00Z"}
        pool = body | {"metadata": body["metadata"] | metadata}
        self.pools[name] = pool
        if self.conditions:
            self._judge(pool, self.conditions.pop(0))
        elif not self.waiting:
            self.deliver(name)
        # What is answered at once knows nothing yet of what the cluster makes of it.
        return JSONResponse({key: value for key, value in pool.items() if key != "status"}, 201)

    def _judge(self, pool: dict[str, Any], said: dict[str, str]) -> None:
        if said.get("kind") == "event":
            about = {"kind": "NodePool", "uid": pool["metadata"]["uid"]}
            self.events.append({"reason": said["reason"], "message": "no", "involvedObject": about})
            return
        all_of_them = GOOD | {said["type"]: said["reason"]}
        pool["status"] = {
            "currentNodes": 0,
            "conditions": [
                {
                    "type": name,
                    "reason": reason,
                    "status": said["status"] if name == said["type"] else "True",
                    "message": "said so",
                }
                for name, reason in all_of_them.items()
            ],
        }

    def deliver(self, name: str, conditions: dict[str, str] | None = None) -> None:
        """Let a pool have its node."""
        pool = self.pools[name]
        shown = GOOD if conditions is None else conditions
        pool["status"] = {
            "currentNodes": 1,
            "conditions": [
                {"type": each, "reason": reason, "status": "True"} for each, reason in shown.items()
            ],
        }
        host = f"g{self.made:05x}"
        labels = pool["spec"]["nodeLabels"] | {f"{CRD['group']}/node-pool": name}
        self.nodes[host] = {
            "metadata": {"name": host, "labels": labels},
            "status": {"addresses": [{"type": "InternalIP", "address": "10.16.0.4"}]},
        }

    def _look(self, name: str, *, listing: bool = False) -> dict[str, Any]:
        """A pool as it is now; one that is removed is gone after so many looks."""
        if name not in self.pools:
            raise RefusalError(404, f'nodepools "{name}" not found')
        pool = self.pools[name]
        if "deletionTimestamp" in pool["metadata"] and not listing:
            pool["looks"] += 1
            if pool["looks"] > self.slow_removals:
                self._gone(name)
        return {key: value for key, value in pool.items() if key != "looks"}

    def _delete(self, name: str, body: Any) -> Response:
        if name not in self.pools:
            raise RefusalError(404, f'nodepools "{name}" not found')
        if set(body) - {"apiVersion", "kind", "preconditions"} or body["kind"] != "DeleteOptions":
            raise RefusalError(400, "unknown delete options")
        pool = self.pools[name]
        wanted = body.get("preconditions", {}).get("uid", pool["metadata"]["uid"])
        self.removals.append(body.get("preconditions", {}).get("uid", ""))
        if wanted != pool["metadata"]["uid"]:
            raise RefusalError(409, "the UID in the precondition does not match")
        pool["metadata"]["deletionTimestamp"] = "2026-11-01T11:00:00Z"
        pool.setdefault("looks", 0)
        if not self.slow_removals:
            self._gone(name)
        return JSONResponse({key: value for key, value in pool.items() if key != "looks"})

    def _gone(self, name: str) -> None:
        self.pools.pop(name, None)
        mine = f"{CRD['group']}/node-pool"
        self.nodes = {
            host: node
            for host, node in self.nodes.items()
            if node["metadata"]["labels"].get(mine) != name
        }

    def _events(self, request: Request) -> Response:
        _check_query(request, {"fieldSelector", "limit"})
        selector = dict(
            part.split("=") for part in request.query_params["fieldSelector"].split(",")
        )
        if set(selector) != {"involvedObject.kind", "involvedObject.uid"}:
            raise RefusalError(400, "unknown field selector")
        about = {"kind": selector["involvedObject.kind"], "uid": selector["involvedObject.uid"]}
        found = [each for each in self.events if each["involvedObject"] == about]
        return JSONResponse({"kind": "EventList", "items": found, "metadata": {}})


# --- what is checked -----------------------------------------------------------------------------


def _call_of(request: Request) -> tuple[str, str]:
    """Verb and kind of a request, and the name in its path."""
    path, verb = request.url.path, request.method
    plain = {POOLS: "nodepools", "/api/v1/nodes": "nodes", "/api/v1/events": "events"}
    if path in plain:
        if verb != "GET" and (verb, path) != ("POST", POOLS):
            raise RefusalError(405, "the server does not allow this method on this resource")
        if verb == "POST":
            _check_query(request, {"fieldValidation"})
        return f"{verb} {plain[path]}", ""
    if path.startswith(f"{POOLS}/") and NAME.fullmatch(path.removeprefix(f"{POOLS}/")):
        if verb not in ("GET", "DELETE"):
            raise RefusalError(405, "the server does not allow this method on this resource")
        _check_query(request, set())
        return f"{verb} nodepool", path.removeprefix(f"{POOLS}/")
    if (verb, path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"):
        return "POST tokenreview", ""
    if verb == "GET" and path.startswith("/api/v1/nodes/"):
        return "GET node", path.removeprefix("/api/v1/nodes/")
    raise RefusalError(404, "the server could not find the requested resource")


def _check_token(request: Request) -> None:
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        raise RefusalError(401, "Unauthorized")


def _check_query(request: Request, known: set[str]) -> None:
    odd = set(request.query_params) - known
    if odd:
        raise RefusalError(400, f"unknown parameters {sorted(odd)}")


def _page(request: Request, kind: str, items: dict[str, dict[str, Any]]) -> Response:
    _check_query(request, {"labelSelector", "limit", "continue"})
    assert int(request.query_params["limit"]) > 0
    key, _, value = request.query_params["labelSelector"].partition("=")
    shown = []
    for _, each in sorted(items.items()):
        labels = each["metadata"].get("labels", {})
        if key in labels and value in ("", labels[key]):
            shown.append({k: v for k, v in each.items() if k != "looks"})
    first = int(request.query_params.get("continue", 0))
    metadata = {}
    if len(shown) > first + PAGE_MAX:
        metadata = {"continue": str(first + PAGE_MAX)}
    page = shown[first : first + PAGE_MAX]
    return JSONResponse({"kind": kind, "items": page, "metadata": metadata})


def _check_pool(body: Any) -> None:
    if (body.get("apiVersion"), body.get("kind")) != (KIND, "NodePool"):
        raise RefusalError(400, "no NodePool")
    odd = set(body) - {"apiVersion", "kind", "metadata", "spec"} | set(body["metadata"]) - METADATA
    if odd:
        raise RefusalError(400, f"strict decoding error: unknown field {sorted(odd)}")
    if not NAME.fullmatch(body["metadata"]["name"]):
        raise RefusalError(422, "metadata.name: Invalid value")
    _check(body["spec"], CRD["spec"], "spec")
    for labels in (body["metadata"].get("labels", {}), body["spec"].get("nodeLabels", {})):
        for key, value in labels.items():
            if not (LABEL.fullmatch(key.rpartition("/")[2]) and LABEL.fullmatch(value)):
                raise RefusalError(422, f"a label cannot be {key}={value}")


def _check(value: Any, schema: dict[str, Any], where: str) -> None:
    """Refuse whatever the schema does not know."""
    if not isinstance(value, TYPES[schema["type"]]):
        raise RefusalError(422, f"{where}: {value!r} is no {schema['type']}")
    if "enum" in schema and value not in schema["enum"]:
        raise RefusalError(422, f"{where}: Unsupported value: {value!r}")
    if schema["type"] == "array":
        for number, each in enumerate(value):
            _check(each, schema["items"], f"{where}[{number}]")
    if schema["type"] == "object":
        missing = set(schema.get("required", ())) - set(value)
        if missing:
            raise RefusalError(422, f"{where}: Required value: {sorted(missing)}")
        for key, each in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if inner is None:
                raise RefusalError(400, f'strict decoding error: unknown field "{where}.{key}"')
            _check(each, inner, f"{where}.{key}")


@asynccontextmanager
async def serving(identity: str = "") -> AsyncIterator[CoreWeaveServer]:
    """The API, up on loopback; by TLS where a file holds certificate and key."""
    api = CoreWeaveServer()
    async with serving_app(api.app(), identity=identity) as api.url:
        yield api
