"""Kueue's part of a Kubernetes API: takes what the published schema allows, and no other call."""

from pathlib import Path
from typing import Any, Final

import yaml
from jsonschema import Draft202012Validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

CRD: Final = Path(__file__).with_name("kueue_workload_crd.yaml")
GROUP: Final = "/apis/kueue.x-k8s.io"
RESOURCE: Final = "nvidia.com/gpu"


def schemas() -> dict[str, dict[str, Any]]:
    """Version -> the schema of a workload, which has no other fields."""
    crd = yaml.safe_load(CRD.read_text())
    versions = crd["spec"]["versions"]
    return {each["name"]: closed(each["schema"]["openAPIV3Schema"]) for each in versions}


def closed(schema: Any) -> Any:
    """The same, which refuses fields that the API server would drop."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


class KueueApi:
    """Workloads, listed a few at a time, and the pods that they have."""

    def __init__(self, *versions: str) -> None:
        self._schemas = {name: schemas()[name] for name in versions}
        self.workloads: list[dict[str, Any]] = []
        self.pods: list[dict[str, Any]] = []
        self.asked: list[str] = []

    def add(self, workload: dict[str, Any]) -> None:
        """Keep a workload that every version allows."""
        for version, schema in self._schemas.items():
            whole = {"apiVersion": f"kueue.x-k8s.io/{version}", "kind": "Workload", **workload}
            errors = Draft202012Validator(schema).iter_errors(whole)
            assert not [f"{each.json_path}: {each.message}" for each in errors]
        self.workloads.append(workload)

    async def serve(self, request: Request) -> Response:
        """Answer the calls that there are."""
        path, query = request.url.path, dict(request.query_params)
        self.asked.append(path)
        if path == "/api/v1/pods":
            return JSONResponse({"metadata": {}, "items": self.pods})
        if path == GROUP and self._schemas:
            versions = [{"groupVersion": f"x/{each}", "version": each} for each in self._schemas]
            return JSONResponse({"kind": "APIGroup", "name": "x", "versions": versions})
        listed = {f"{GROUP}/{each}/workloads" for each in self._schemas}
        if request.method != "GET" or path not in listed or set(query) - {"limit", "continue"}:
            return JSONResponse({"kind": "Status", "message": "page not found"}, 404)
        begin = int(query.get("continue", "0"))
        end = begin + min(int(query["limit"]), 2)
        more = str(end) if end < len(self.workloads) else ""
        about = {"resourceVersion": "7", "continue": more}
        return JSONResponse({"metadata": about, "items": self.workloads[begin:end]})


def pod_set(count: int, gpus: int, **spec: Any) -> dict[str, Any]:
    """Return pods of one kind."""
    resources = {"limits": {RESOURCE: str(gpus)}} if gpus else {}
    container = {"name": "main", "image": "none", "resources": resources}
    return {
        "name": "main",
        "count": count,
        "template": {"spec": {"containers": [container], **spec}},
    }


def workload(
    name: str, *pods: dict[str, Any], owner: str = "JobSet", queue: str = "gpu", **more: Any
) -> dict[str, Any]:
    """A workload that waits for quota, unless `conditions` say another thing."""
    about = {
        "name": name,
        "namespace": "ml",
        "creationTimestamp": more.get("created", "2026-01-01T00:00:00Z"),
        "ownerReferences": [
            {"apiVersion": "v1", "kind": owner, "name": name, "uid": "u", "controller": True}
        ],
    }
    sets = [{**each, "name": f"set-{number}"} for number, each in enumerate(pods)]
    spec = {"podSets": sets, "queueName": queue, **more.get("spec", {})}
    status: dict[str, Any] = {
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for kind, reason in more.get("conditions", {}).items()
        ]
    }
    if flavor := more.get("flavor"):
        assigned = [{"name": each["name"], "flavors": {RESOURCE: flavor}} for each in sets]
        if "admitted" in more:
            assigned[0]["count"] = more["admitted"]
        status["admission"] = {"clusterQueue": "cq", "podSetAssignments": assigned}
    return {"metadata": about, "spec": spec, "status": status}
