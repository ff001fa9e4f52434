"""The part of a Kubernetes API that the notifier uses: nodes, pods, watches, patches."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from services.notifier.workload.kubernetes.gpu_taints import FAULTY
from services.notifier.workload.kubernetes_notifier import KubernetesNotifier
from services.notifier.workload.workload_notifier import Notifier
from tests.notifier.device_api import DeviceApi
from tests.notifier.workload_sites import CLOCK, NODES, TIMEOUT, HttpSite

_KUBECONFIG: Final = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: {token}}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""


def kubeconfig(url: str, token: str = "t") -> str:
    """A kubeconfig that logs in by a token."""
    return _KUBECONFIG.format(url=url, token=token)


class KubernetesSite(HttpSite):
    """Nodes with a pod of a job each, which runs until the test ends it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        for each in ("client", "config"):
            import_module(f"kubernetes_asyncio.{each}")  # not within a call's time-out
        self.folder = folder
        self.objects: dict[str, dict[str, Any]] = {"nodes": {}, "pods": {}}
        self.dra = DeviceApi()
        self.changes: list[tuple[str, dict[str, Any]]] = []
        """Kind and change; an object's version is its place in this list."""
        self.changed = asyncio.Event()
        self.refuses: Callable[[Request], Response | None] = lambda _: None
        """Answers in place of the API where it returns an answer."""
        self.evicted: list[str] = []
        for each in NODES:
            self.store("nodes", {"metadata": {"name": each}, "spec": {}})

    def make(self) -> Notifier:
        file = self.folder / "kubeconfig"
        file.write_text(kubeconfig(self.url))
        options = KubernetesNotifier.Options(
            kubeconfig=str(file),
            timeout=TIMEOUT,
            checkpoint_pods=True,
            gpu_cordon="device-taint",
        )
        return KubernetesNotifier(options=options, clock=CLOCK)

    def store(self, kind: str, what: Any, change: str = "MODIFIED") -> None:
        name = what["metadata"]["name"]
        version = str(len(self.changes) + 1)
        what = merged(what, {"metadata": {"uid": f"uid-{name}", "resourceVersion": version}})
        self.objects[kind] = merged(
            {**self.objects[kind], name: what}, {name: None} if change == "DELETED" else {}
        )
        self.changes.append((kind, {"type": change, "object": what}))
        self.changed.set()
        self.changed = asyncio.Event()

    def place(self, node: str, *, owner: str = "Job") -> None:
        about = {
            "name": f"pod-{node}",
            "namespace": "default",
            "annotations": {"pod.navarch.io/checkpoint": "true"},
            "ownerReferences": [{"kind": owner, "name": f"train-{node}", "controller": True}],
        }
        policy = "Never" if owner == "Job" else "Always"
        spec = {"nodeName": node, "restartPolicy": policy}
        self.store("pods", {"metadata": about, "spec": spec})

    def announce(self, node: str, at: datetime) -> bool:
        annotations = {"pod.navarch.io/checkpoint-at": at.isoformat()}
        self.patch("pods", f"pod-{node}", {"metadata": {"annotations": annotations}})
        return True

    def leave(self, node: str) -> None:
        if (pod := self.objects["pods"].get(f"pod-{node}")) is not None:
            self.store("pods", pod, "DELETED")

    def is_cordoned(self, node: str) -> bool:
        return bool(self.objects["nodes"][node]["spec"].get("unschedulable"))

    def cordon_by_another(self, node: str) -> bool:
        self.patch("nodes", node, {"spec": {"unschedulable": True}})
        return True

    def cordoned_gpus(self, node: str) -> set[int]:
        found = self.dra.tainted(f"uid-{node}")
        label = self.objects["nodes"][node]["metadata"].get("labels", {}).get(FAULTY, "")
        assert label == "_".join(str(each) for each in sorted(found))
        return found

    async def content(self, request: Request) -> Response:
        if (refusal := self.refuses(request)) is not None:
            return refusal
        if request.url.path.startswith("/apis/resource.k8s.io/"):
            return await self.dra.answer(request)
        match request.method, request.url.path.split("/")[3:]:
            case "GET", [kind] if "watch" in request.query_params:
                after = int(request.query_params["resourceVersion"])
                return StreamingResponse(self.watch(kind, after))
            case "GET", [kind]:
                _, only, node = request.query_params.get("fieldSelector", "").partition(
                    "spec.nodeName="
                )
                found = [
                    each
                    for each in self.objects[kind].values()
                    if not only or each["spec"]["nodeName"] == node
                ]
                version = {"resourceVersion": str(len(self.changes))}
                return JSONResponse({"metadata": version, "items": found})
            case "GET", ["nodes", name]:
                known = self.objects["nodes"].get(name)
                return JSONResponse(known or {}, 200 if known else 404)
            case "PATCH", ["nodes", name]:
                return self.patch("nodes", name, await request.json())
            case "PATCH", ["namespaces", _, "pods", name]:
                keys = self.checkpoints.setdefault(name.removeprefix("pod-"), set())
                keys.add(str(len(self.changes)))
                return self.patch("pods", name, await request.json())
            case "POST", ["namespaces", _, "pods", name, "eviction"]:
                self.evicted.append(name)
                self.leave(name.removeprefix("pod-"))
            case "DELETE", ["namespaces", _, "pods", name]:
                self.leave(name.removeprefix("pod-"))
        return JSONResponse({})

    def patch(self, kind: str, name: str, patch: Any) -> Response:
        self.store(kind, merged(self.objects[kind][name], patch))
        return JSONResponse(self.objects[kind][name])

    async def watch(self, kind: str, after: int) -> AsyncIterator[bytes]:
        while True:
            new, changed = self.changes[after:], self.changed
            after += len(new)
            for of, change in new:
                if of == kind:
                    yield json.dumps(change).encode() + b"\n"
            await changed.wait()


def status(code: int, message: str) -> Response:
    """The API's answer to a call that it refuses."""
    body = {"kind": "Status", "code": code, "message": message, "reason": "", "details": {}}
    return JSONResponse(body, code)


def merged(what: Any, patch: Any) -> Any:
    """A JSON merge patch, applied."""
    if not isinstance(patch, dict):
        return patch
    old = what if isinstance(what, dict) else {}
    new = {name: merged(old.get(name), value) for name, value in patch.items() if value is not None}
    return {name: value for name, value in old.items() if name not in patch} | new
