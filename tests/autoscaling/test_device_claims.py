"""The metrics source counts pods by the GPUs of their ResourceClaims."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.pool_manager.autoscaling.metrics_sources import Load, WaitingJobs
from services.pool_manager.autoscaling.sources.device_claims import ResourceClaim, gpus_of
from tests.autoscaling.test_metrics_sources import load
from tests.notifier.kubernetes_site import kubeconfig
from tests.support.serving import serving

GPUS = "gpu.nvidia.com"


def claim(name: str, gpus: int, **more: Any) -> dict[str, Any]:
    """A ResourceClaim that requests GPUs, and one network card, as the API lists it."""
    wanted = {"deviceClassName": GPUS, "allocationMode": "ExactCount", "count": gpus}
    card = {"name": "nic", "exactly": {"deviceClassName": "nic.example.com", "count": 1}}
    requests = [card, {"name": "gpu", "exactly": wanted}, *more.get("requests", [])]
    about = {"name": name, "namespace": "ml"}
    status = {"allocation": {}} if more.get("allocated") else {}
    return {"metadata": about, "spec": {"devices": {"requests": requests}}, "status": status}


def also(**exactly: Any) -> dict[str, Any]:
    """Return a claim of one GPU with another request beside it."""
    return claim("a", 1, requests=[{"name": "more", "exactly": exactly}])


@pytest.mark.parametrize(
    ("claimed", "gpus"),
    [
        (claim("a", 2), 2),
        (claim("a", 2, allocated=True), 0),
        (claim("a", 1, requests=[{"firstAvailable": [{"deviceClassName": GPUS}]}]), 2),
        (claim("a", 1, requests=[{"deviceClassName": GPUS, "count": 3}]), 4),
        (also(deviceClassName="mig.nvidia.com"), 1),
        (also(deviceClassName=GPUS, adminAccess=True), 1),
        (also(deviceClassName=GPUS, count=99_999), 1_024),
    ],
)
def test_a_claim_counts_by_the_gpus_that_it_waits_for(claimed: dict[str, Any], gpus: int) -> None:
    """Only GPUs of its class count, in each version's form; monitoring shares those of others."""
    assert gpus_of(msgspec.convert(claimed, ResourceClaim), GPUS) == gpus


def claimer(*claims: str, template: str = "", node: str = "", kind: str = "") -> dict[str, Any]:
    """A pod with claims, which waits unless it is on a node."""
    spec: dict[str, Any] = {"nodeName": node}
    spec["resourceClaims"] = [{"name": each, "resourceClaimName": each} for each in claims]
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status: dict[str, Any] = {"conditions": [refused]}
    if template:
        spec["resourceClaims"] += [{"name": "gpus", "resourceClaimTemplateName": "gpus"}]
        status["resourceClaimStatuses"] = [{"name": "gpus", "resourceClaimName": template}]
    owner = [{"kind": kind, "name": "x", "controller": True}] if kind else []
    about = {"namespace": "ml", "name": "p", "ownerReferences": owner}
    return {"metadata": about, "spec": spec, "status": status}


async def test_pods_count_by_their_claims(tmp_path: Path) -> None:
    """Waiting ones by the GPUs, a shared claim once; a node with a pod that holds one is busy."""
    pytest.importorskip("kubernetes_asyncio")
    pods = [
        claimer(template="gpus-1"),
        claimer("shared"),
        claimer("shared"),
        claimer("nic"),
        claimer("held", node="gpu-1"),
        claimer("metrics", node="gpu-2", kind="DaemonSet"),
    ]
    claims = [claim("gpus-1", 4), claim("shared", 2), claim("held", 8, allocated=True)]
    answers: dict[str, Any] = {
        "/api/v1/pods": {"metadata": {}, "items": pods},
        "/apis/resource.k8s.io": {"versions": [{"version": "v1beta2"}, {"version": "v1"}]},
        "/apis/resource.k8s.io/v1/resourceclaims": {"metadata": {}, "items": claims},
    }

    async def answer(request: Request) -> Response:
        return JSONResponse(answers[request.url.path])

    async with serving(Starlette(routes=[Route("/{path:path}", answer)])) as url:
        (file := tmp_path / "kubeconfig").write_text(kubeconfig(url))
        found = await load({"type": "kubernetes", "kubeconfig": str(file)})
    assert found == Load(
        pending_jobs=2, waiting=(WaitingJobs(gpus=4), WaitingJobs(gpus=2)), busy_nodes=1
    )
