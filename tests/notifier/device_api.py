"""The part of Kubernetes' resource.k8s.io that the notifier uses, which refuses what it does."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

DRIVER = "gpu.nvidia.com"
UUID_LABEL = "node.navarch.io/node-uid"


class _Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """An object with exactly these fields."""


class _Owner(_Strict):
    api_version: str
    kind: str
    name: str
    uid: str


class _Metadata(_Strict):
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    owner_references: list[_Owner]


class _Selector(_Strict):
    driver: str
    pool: str
    device: str


class _Taint(_Strict):
    key: str
    value: str
    effect: str


class _Spec(_Strict):
    device_selector: _Selector
    taint: _Taint


class _Rule(_Strict):
    api_version: str
    kind: str
    metadata: _Metadata
    spec: _Spec


class DeviceApi:
    """Eight GPUs on each node, the fourth of which has two partitions, and the rules about them."""

    def __init__(self, version: str = "v1", resources: tuple[str, ...] = ("all",)) -> None:
        """`version`: the only one that is served; `resources`: which, all of them unless said."""
        both = ("resourceslices", "devicetaintrules")
        self.version, self.resources = version, both if resources == ("all",) else resources
        self.rules: dict[str, dict[str, Any]] = {}
        self.posted = 0

    def tainted(self, node_uid: str) -> set[int]:
        """The GPUs of a node that no claim gets any more."""
        found: dict[int, set[str]] = {}
        for rule in self.rules.values():
            if rule["metadata"]["labels"][UUID_LABEL] == node_uid:
                selected = rule["spec"]["deviceSelector"]
                assert selected["driver"] == DRIVER
                number = int(selected["device"].split("-")[1])
                found.setdefault(number, set()).add(selected["device"])
        for number, devices in found.items():
            assert devices == {each["name"] for each in devices_of("n", number)}
        return set(found)

    async def answer(self, request: Request) -> Response:
        """Answer as an API server does."""
        match request.method, request.url.path.split("/")[3:]:
            case _, [version, *_] if version != self.version:
                return _status(404)
            case "GET", [_]:
                return JSONResponse({"resources": [{"name": each} for each in self.resources]})
            case _, [_, kind, *_] if kind not in self.resources:
                return _status(404)
            case "GET", [_, "resourceslices"]:
                node = request.query_params["fieldSelector"].removeprefix("spec.nodeName=")
                devices = [each for number in range(8) for each in devices_of(node, number)]
                spec = {"driver": DRIVER, "pool": {"name": node}, "nodeName": node}
                other = {**spec, "driver": "nics.example", "devices": [{"name": "nic-0"}]}
                items = [{"spec": {**spec, "devices": devices}}, {"spec": other}]
                return JSONResponse({"metadata": {}, "items": items})
            case "GET", [_, "devicetaintrules"]:
                key, _, value = request.query_params["labelSelector"].partition("=")
                items = [r for r in self.rules.values() if r["metadata"]["labels"][key] == value]
                return JSONResponse({"metadata": {}, "items": items})
            case "POST", [_, "devicetaintrules"]:
                return self.create(await request.body())
            case "DELETE", [_, "devicetaintrules", name]:
                return _status(200 if self.rules.pop(name, None) else 404)
        return _status(405)

    def create(self, body: bytes) -> Response:
        """Refuse a rule that the real server would refuse."""
        rule = msgspec.json.decode(body, type=_Rule)
        assert (rule.api_version, rule.kind) == (
            f"resource.k8s.io/{self.version}",
            "DeviceTaintRule",
        )
        assert rule.spec.taint.effect in ("NoSchedule", "NoExecute", "None")
        assert len(rule.metadata.labels) == 1
        if rule.metadata.name in self.rules:
            return _status(409)
        self.posted += 1
        self.rules[rule.metadata.name] = msgspec.json.decode(body)
        return JSONResponse({}, 201)


def devices_of(node: str, number: int) -> list[dict[str, Any]]:
    """A GPU, and its partitions, as the driver of NVIDIA publishes them."""
    whole = {"uuid": {"string": f"GPU-{node}-{number}"}, "index": {"int": number}}
    found = [{"name": f"gpu-{number}", "attributes": whole}]
    for part in range(2 if number == 3 else 0):
        attributes = {
            "uuid": {"string": f"MIG-{node}-{number}-{part}"},
            "parentUUID": {"string": f"GPU-{node}-{number}"},
        }
        found.append({"name": f"gpu-{number}-mig-{part}", "attributes": attributes})
    return found


def _status(code: int) -> Response:
    return JSONResponse({"kind": "Status", "code": code, "message": f"status {code}"}, code)
