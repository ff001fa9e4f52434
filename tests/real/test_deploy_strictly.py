"""The API server refuses nothing that the chart, the overlay and the manifests make: strictly."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import yaml

from tests.real.kubernetes_cluster import Cluster, collection, needs_kubernetes, real_cluster
from tests.real.kustomize_base import BASE, ROOT, rendered, run, tool
from tests.real.test_deploy_manifests import EXAMPLE, OTHERS
from tests.support.inprocess import eventually

DEFINITIONS: Final = Path(tool("kubeconform")).parent / "definitions"
"""Where tests/real/kubernetes/install-tools.sh puts what others define."""
MANIFESTS: Final = ROOT / "deploy/kubernetes"
STRICTLY: Final = {"dryRun": "All", "fieldValidation": "Strict"}
ENFORCE: Final = "pod-security.kubernetes.io/enforce"
LEVELS: Final = {"navarch": "restricted", "navarch-agents": "privileged", "observed": "privileged"}
"""Namespaces, as the pages label them."""
QUOTA: Final = "/api/v1/namespaces/{}/resourcequotas/navarch-agent"
pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    needs_kubernetes(),
    pytest.mark.skipif(
        not (tool("helm") and tool("kustomize") and DEFINITIONS.is_dir()),
        reason="no helm, kustomize and definitions here: with Go 1.26, run "
        "tests/real/kubernetes/install-tools.sh",
    ),
]


def objects(text: str) -> list[dict[str, Any]]:
    """Return the manifests of a text, without namespaces, which are there."""
    return [each for each in yaml.safe_load_all(text) if each and each["kind"] != "Namespace"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Start a control plane with the pages' namespaces, and what the manifests refer to."""
    async with real_cluster(tmp_path_factory.mktemp("kubernetes")) as made:
        for name, level in LEVELS.items():
            about = {"name": name, "labels": {ENFORCE: level}}
            await made.create({"apiVersion": "v1", "kind": "Namespace", "metadata": about})
        high = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1}
        await made.create({"apiVersion": "scheduling.k8s.io/v1", **high})
        nvidia = {"kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}
        await made.create({"apiVersion": "node.k8s.io/v1", **nvidia})
        for file in DEFINITIONS.glob("*.yaml"):
            await defined(made, yaml.safe_load(file.read_text()))
        yield made


async def defined(cluster: Cluster, definition: dict[str, Any]) -> None:
    """Define a kind, and wait until it is served."""
    await cluster.create(definition)
    where = f"{collection(definition)}/{definition['metadata']['name']}"

    async def served() -> bool:
        status = (await cluster.get(where)).get("status", {})
        return any(
            each["type"] == "Established" and each["status"] == "True"
            for each in status.get("conditions") or ()
        )

    await eventually(served, within_seconds=60, every=0.2)


def pods_of(manifest: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Return the pod that a controller would make, which a level of security is about."""
    template = manifest.get("spec", {}).get("template", {})
    if "containers" in template.get("spec", {}):
        about = template["metadata"] | {"name": manifest["metadata"]["name"]}
        about |= {"namespace": manifest["metadata"]["namespace"]}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": template["spec"]}


async def refused(cluster: Cluster, manifests: Iterable[dict[str, Any]]) -> list[str]:
    """Return what the API server has against objects, and against the pods of controllers."""
    found = []
    for manifest in manifests:
        for each in (manifest, *pods_of(manifest)):
            reply = await cluster.api.post(collection(each), json=each, params=STRICTLY)
            said = [] if reply.is_success else [reply.text]
            said += reply.headers.get_list("warning")
            found += [f"{each['kind']} {each['metadata']['name']}: {text}" for text in said]
    return found


async def quota(cluster: Cluster, manifests: Iterable[dict[str, Any]]) -> None:
    """Create the quotas, without which agents' pods are refused, and wait until they count."""
    for each in manifests:
        if each["kind"] != "ResourceQuota":
            continue
        where = QUOTA.format(each["metadata"]["namespace"])
        if (await cluster.api.get(where)).is_success:
            continue
        await cluster.create(each)

        async def counts(where: str = where) -> bool:
            return "hard" in (await cluster.get(where)).get("status", {})

        await eventually(counts, within_seconds=60, every=0.2)


async def without(cluster: Cluster, manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Create the quotas among the manifests; return the other manifests."""
    await quota(cluster, manifests)
    return [each for each in manifests if each["kind"] != "ResourceQuota"]


async def test_agents_need_their_quota(cluster: Cluster) -> None:
    """Where system classes are limited, as in GKE, their pods are refused without it alone."""
    manifests = objects(rendered())
    (agents,) = (each for each in manifests if each["kind"] == "DaemonSet")
    (said,) = await refused(cluster, [agents])
    assert "insufficient quota to match these scopes" in said
    await quota(cluster, manifests)
    assert await refused(cluster, [agents]) == []


@pytest.mark.parametrize("name", ["as it is", *OTHERS])
async def test_the_charts_objects_are_accepted(cluster: Cluster, name: str) -> None:
    """The server accepts whatever is switched on, also routes and monitors, which others define."""
    manifests = await without(cluster, objects(rendered(*OTHERS.get(name, ()))))
    assert await refused(cluster, manifests) == []


async def test_the_kustomizations_objects_are_accepted(cluster: Cluster) -> None:
    """The server accepts the base and the overlay."""
    for folder in (BASE, EXAMPLE):
        manifests = await without(cluster, objects(run("kustomize", "build", str(folder))))
        assert await refused(cluster, manifests) == []


@pytest.mark.parametrize("file", sorted(each.name for each in MANIFESTS.glob("*.yaml")))
async def test_the_manifests_by_hand_are_accepted(cluster: Cluster, file: str) -> None:
    """The observer's namespace is its own here, because it has agents beside the services."""
    text = (MANIFESTS / file).read_text()
    if file == "observe.yaml":
        text = text.replace("namespace: navarch\n", "namespace: observed\n")
    manifests = await without(cluster, objects(text))
    assert await refused(cluster, manifests) == []
    for each in manifests:
        if each["kind"] == "Deployment":  # its pods ask for no privilege all the same
            each["metadata"]["namespace"] = "navarch"
            assert await refused(cluster, [each]) == []


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("Deployment", ("imagePullPolicy", "imagePolicy"), "unknown field"),
        ("Deployment", ("runAsNonRoot: true", "runAsNonRoot: false"), "violates PodSecurity"),
        ("ServiceMonitor", ("interval:", "intervall:"), "unknown field"),
        ("HTTPRoute", ("backendRefs:", "backends:"), "unknown field"),
        ("Ingress", ("secretName:", "secret:"), "unknown field"),
        ("ResourceQuota", ("scopeName: PriorityClass", "scopeName: Priority"), "scopeName"),
        ("DaemonSet", ("readinessProbe:", "readyProbe:"), "unknown field"),
    ],
)
async def test_a_mistake_is_refused(
    cluster: Cluster, kind: str, change: tuple[str, str], why: str
) -> None:
    """The tests above would see a mistake of this kind."""
    text = rendered(*OTHERS["outside"])
    assert change[0] in text
    wrong = [each for each in objects(text.replace(*change)) if each["kind"] == kind]
    said = await refused(cluster, wrong[:1])
    assert why in "\n".join(said)
