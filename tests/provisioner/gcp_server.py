"""Compute Engine as Google's own discovery document has it, on a free port, and strict.

The document (names and types, in `data/compute.v1.json`) says which paths, methods, parameters,
fields and values there are; anything else is refused. Operations take two looks to be done. Faults
are made to order. Access tokens are of `google_logins`.
"""

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

from tests.provisioner.gcp_price_list import GcpPriceList
from tests.provisioner.google_logins import GoogleLogins
from tests.support.serving import serving as serving_app

API = json.loads((Path(__file__).parent / "data" / "compute.v1.json").read_text())
MACHINES = {
    "a2-highgpu-8g": (96, 696_320, ("nvidia-tesla-a100", 8), ("us-central1-a", "us-central1-b")),
    "a3-highgpu-8g": (208, 1_916_928, ("nvidia-h100-80gb", 8), ("us-central1-a", "europe-west4-b")),
    "a3-megagpu-8g": (208, 1_916_928, ("nvidia-h100-mega-80gb", 8), ("us-central1-a",)),
    "a4-highgpu-8g": (224, 4_063_232, ("nvidia-b200", 8), ("us-central1-b",)),
    "n1-standard-8": (8, 30_720, None, ("us-central1-a",)),
}
"""Type -> its cores, MiB of memory, GPUs, and the zones that have it."""
PAGE_MAX = 5
"""Of a list; small, so that there are several."""


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile("/compute/v1/" + re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path))


CHECKED = {"machineTypes.aggregatedList", "regions.get", "projects.get"}
"""Methods whose answers are held to the document, too."""
METHODS = [
    (name, each["httpMethod"], _pattern(each["path"]), each)
    for name, each in API["methods"].items()
]


class GcpError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        """As Google words it."""
        super().__init__(message)
        self.status = status
        self.body = {"error": {"code": status, "message": message, "errors": [{"reason": reason}]}}


class GcpServer:
    """Serves the strict API of one project at Google."""

    def __init__(self, public_key: str) -> None:
        self.logins = GoogleLogins(public_key)
        self.instances: dict[tuple[str, str], dict[str, Any]] = {}
        self.operations: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.refusals: list[tuple[str, int, str, bool]] = []
        """Method, status, reason, and whether the request takes effect all the same."""
        self.failures: list[str] = []
        """Codes that the next operations of a launch fail of."""
        self.unreachable: list[str] = []
        self.faulty: dict[str, tuple[str, Any]] = {}
        """Request ID -> instance and report of its host."""
        self.quotas: dict[str, list[dict[str, Any]]] = {}
        """Region, or empty for the whole project -> its quotas; absent: Google cannot say."""
        self.price_list = GcpPriceList(self.logins)
        self.url = ""

    def refuse(self, method: str, status: int, reason: str, *, after_success: bool = False) -> None:
        """Answer the next call of a method so."""
        self.refusals.append((method, status, reason, after_success))

    def app(self) -> Starlette:
        """Return one application with the logins, the prices and the API."""
        return Starlette(
            routes=[
                *self.logins.routes(),
                Route("/v1/services/{service}/skus", self.price_list.answer),
                Route("/{path:path}", self._api, methods=["GET", "POST", "DELETE", "PUT", "PATCH"]),
            ]
        )

    async def _api(self, request: Request) -> Response:
        raw = await request.body()
        if not self.logins.accepts(request):
            return JSONResponse(GcpError(401, "authError", "Login Required.").body, 401)
        try:
            name, at = _method(request)
            self.calls.append(name)
            body = json.loads(raw) if raw else None
            _check_body(API["methods"][name], body)
            refusal = next((each for each in self.refusals if each[0] == name), None)
            if refusal is not None:
                self.refusals.remove(refusal)
                if refusal[3]:
                    self._answer(name, at, request, body)
                error = GcpError(refusal[1], refusal[2], refusal[2])
                return JSONResponse(error.body, error.status)
            answer = self._answer(name, at, request, body)
            if name in CHECKED:
                check_value(API, answer, API["methods"][name]["response"], name)
            return JSONResponse(answer)
        except GcpError as error:
            return JSONResponse(error.body, error.status)

    def _answer(self, name: str, at: dict[str, str], request: Request, body: Any) -> Any:
        match name:
            case "instances.insert":
                return self._insert(at, body)
            case "instances.get":
                return self._found(at)
            case "instances.delete":
                del self.instances[self._key(at)]
                return self._operation(at["zone"])
            case "instances.reset":
                self._found(at)
                return self._operation(at["zone"])
            case "instances.reportHostAsFaulty":
                return self._report(at, request, body)
            case "zoneOperations.wait":
                return self._wait(at)
            case "machineTypes.aggregatedList":
                return _machine_types(request)
            case "regions.get":
                return self._region(at["region"])
            case "projects.get":
                return {"quotas": self.quotas.get("", [])}
            case _:
                return self._list(request)

    def _region(self, region: str) -> dict[str, Any]:
        if region in self.quotas:
            return {"quotas": self.quotas[region]}
        return {"quotaStatusWarning": {"code": "QUOTA_INFO_UNAVAILABLE", "message": "no quotas"}}

    def _key(self, at: dict[str, str]) -> tuple[str, str]:
        self._found(at)
        return at["zone"], at["instance"]

    def _found(self, at: dict[str, str]) -> dict[str, Any]:
        try:
            return self.instances[at["zone"], at["instance"]]
        except KeyError:
            raise GcpError(404, "notFound", f"{at['instance']} was not found") from None

    def _insert(self, at: dict[str, str], body: dict[str, Any]) -> Any:
        key = (at["zone"], body["name"])
        if key in self.instances:
            raise GcpError(409, "alreadyExists", f"{body['name']} already exists")
        failure = self.failures.pop(0) if self.failures else ""
        if not failure:
            zone = f"https://compute/projects/p/zones/{at['zone']}"
            self.instances[key] = body | {
                "zone": zone,
                "status": "RUNNING",
                "machineType": f"https://compute/{body['machineType']}",
                "creationTimestamp": "2026-11-01T10:00:00.000-07:00",
                "resourceStatus": {"physicalHost": "block/sub/host-7"},
                "networkInterfaces": [
                    {"networkIP": "10.0.0.2", "accessConfigs": [{"natIP": "192.0.2.9"}]},
                    *body["networkInterfaces"][1:],
                ],
            }
        return self._operation(at["zone"], failure)

    def _report(self, at: dict[str, str], request: Request, body: dict[str, Any]) -> Any:
        """Only of what runs in a reservation, once for each request's ID."""
        instance = self._found(at)
        if "reservationAffinity" not in instance:
            raise GcpError(400, "INSTANCES_WITHOUT_RESERVATION_NOT_SUPPORTED", "no reservation")
        self.faulty[request.query_params["requestId"]] = (at["instance"], body)
        return self._operation(at["zone"])

    def _operation(self, zone: str, failure: str = "") -> dict[str, Any]:
        name = f"operation-{len(self.operations)}"
        made: dict[str, Any] = {"name": name, "status": "RUNNING", "zone": zone}
        self.operations[name] = made
        if failure:
            made["later"] = {"errors": [{"code": failure, "message": "no"}]}
        return {key: value for key, value in made.items() if key != "later"}

    def _wait(self, at: dict[str, str]) -> dict[str, Any]:
        """Not done at the first look, as Google may return early."""
        made = self.operations[at["operation"]]
        if not made.get("seen"):
            made["seen"] = True
            return {"name": made["name"], "status": "RUNNING"}
        done: dict[str, Any] = {"name": made["name"], "status": "DONE"}
        return done | ({"error": made["later"]} if "later" in made else {})

    def _list(self, request: Request) -> dict[str, Any]:
        wanted = request.query_params["filter"]
        assert wanted == "labels.navarch-fleet:*"
        shown = [
            each
            for _, each in sorted(self.instances.items())
            if "navarch-fleet" in each.get("labels", {})
        ]
        first = int(request.query_params.get("pageToken", 0))
        page = shown[first : first + PAGE_MAX]
        items: dict[str, Any] = {"zones/empty": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}
        for each in page:
            scope = items.setdefault(f"zones/{each['zone'].rpartition('/')[2]}", {"instances": []})
            scope["instances"].append(each)
        answer: dict[str, Any] = {"items": items}
        if len(shown) > first + PAGE_MAX:
            answer["nextPageToken"] = str(first + PAGE_MAX)
        if self.unreachable:
            answer["unreachables"] = self.unreachable
        return answer


def _method(request: Request) -> tuple[str, dict[str, str]]:
    """Which documented method a request is; its path's parameters."""
    for name, verb, pattern, about in METHODS:
        found = pattern.fullmatch(request.url.path)
        if found and verb == request.method:
            known = set(about["parameters"]) | set(API["common_parameters"])
            odd = set(request.query_params) - known
            if odd:
                raise GcpError(400, "invalidParameter", f"unknown parameters {sorted(odd)}")
            for key, value in found.groupdict().items():
                wanted = about["parameters"][key].get("pattern")
                if wanted and not re.fullmatch(wanted, value):
                    raise GcpError(400, "invalid", f"{key} {value!r} is not {wanted}")
            return name, found.groupdict()
    raise GcpError(404, "notFound", f"no method {request.method} {request.url.path}")


def _check_body(about: dict[str, Any], body: Any) -> None:
    wanted = about.get("request")
    if (wanted is None) != (body is None):
        raise GcpError(400, "badRequest", "a body where there is none, or none where there is one")
    if wanted is not None:
        check_value(API, body, {"$ref": wanted["$ref"]}, wanted["$ref"])


def _machine_types(request: Request) -> dict[str, Any]:
    """Those of a filter by names, one zone on a page."""
    wanted = request.query_params["filter"]
    assert re.fullmatch(r'\(name = "[\w-]+"\)( OR \(name = "[\w-]+"\))*', wanted)
    names = re.findall(r'"([\w-]+)"', wanted)
    zones = sorted({zone for each in MACHINES.values() for zone in each[3]})
    number = int(request.query_params.get("pageToken", 0))
    here = [name for name in names if zones[number] in MACHINES.get(name, ((),) * 4)[3]]
    found = [_machine_type(name, zones[number]) for name in here]
    answer: dict[str, Any] = {"items": {f"zones/{zones[number]}": {"machineTypes": found}}}
    return answer | ({"nextPageToken": str(number + 1)} if number + 1 < len(zones) else {})


def _machine_type(name: str, zone: str) -> dict[str, Any]:
    cores, memory, gpus, _ = MACHINES[name]
    made: dict[str, Any] = {"name": name, "guestCpus": cores, "memoryMb": memory, "zone": zone}
    if gpus:
        kind, count = gpus
        made["accelerators"] = [{"guestAcceleratorType": kind, "guestAcceleratorCount": count}]
    return made


def check_value(api: Any, value: Any, schema: dict[str, Any], where: str) -> None:
    """Refuse whatever a discovery document does not know."""
    if "$ref" in schema:
        schema = api["schemas"][schema["$ref"]]
    kinds: dict[str, Any] = {"string": str, "boolean": bool, "integer": int, "array": list}
    kinds |= {"object": dict, "number": int | float}
    if not isinstance(value, kinds[schema["type"]]):
        raise GcpError(400, "invalid", f"{where}: {value!r} is no {schema['type']}")
    if "enum" in schema and value not in schema["enum"]:
        raise GcpError(400, "invalid", f"{where}: {value!r} is none of {schema['enum']}")
    if schema.get("format") == "int64" and not str(value).isdigit():
        raise GcpError(400, "invalid", f"{where}: {value!r} is no number")
    if schema["type"] == "array":
        for number, each in enumerate(value):
            check_value(api, each, schema["items"], f"{where}[{number}]")
    if schema["type"] == "object":
        for key, each in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if inner is None:
                raise GcpError(400, "invalid", f"{where}: unknown field {key}")
            check_value(api, each, inner, f"{where}.{key}")


@asynccontextmanager
async def serving(public_key: str) -> AsyncIterator[GcpServer]:
    """Serve the API on loopback."""
    api = GcpServer(public_key)
    async with serving_app(api.app()) as api.url:
        api.logins.url = api.url
        yield api
