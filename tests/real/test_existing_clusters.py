"""docs/existing-clusters.md against a real API server: it observes, and has no right to write."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.bus.nats.embedded_server import server_binary
from services.primitives.free_ports import free_ports
from services.provisioner.providers.local_gpus import kmsg_record
from tests.real.kubernetes_cluster import Cluster, needs_kubernetes, real_cluster
from tests.real.kubernetes_work import add_nodes, node_of
from tests.real.test_kubernetes_page import blocks_of, run
from tests.support.inprocess import eventually, navarch

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/existing-clusters.md"
MANIFEST = ROOT / "deploy/kubernetes/observe.yaml"
OBSERVER = "system:serviceaccount:navarch:navarch-observer"
PROVIDER = "services.provisioner.providers.kubernetes:KubernetesProvider"
pytestmark = [
    pytest.mark.real,
    needs_kubernetes("kubectl"),
]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a control plane without anything of Navarch."""
    async with real_cluster(tmp_path) as made:
        yield made


def manifest(kind: str) -> Any:
    """Return the manifest's object of a kind."""
    found = yaml.safe_load_all(MANIFEST.read_text())
    return next(each for each in found if each["kind"] == kind)


@asynccontextmanager
async def process(*command: str, log: Path, **variables: str) -> AsyncIterator[None]:
    """Run a program with these variables and those of the test without Navarch's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NAVARCH_")}
    with log.open("wb") as out:
        started = await asyncio.create_subprocess_exec(
            *command, stdout=out, stderr=out, env=kept | variables, cwd=ROOT
        )
    try:
        yield
    finally:
        started.terminate()
        await started.wait()


async def configuration(cluster: Cluster, port: int, **acts: Any) -> tuple[Path, Path]:
    """Write the ConfigMap's files for programs outside of the cluster, and return their paths.

    The options `acts` say how nodes are removed; without them Navarch observes.
    """
    folder = cluster.folder
    data = manifest("ConfigMap")["data"]
    settings = yaml.safe_load(data["navarch.yaml"])
    token = await run(
        cluster, "kubectl create token navarch-observer --namespace navarch --duration 1h"
    )
    kubeconfig = yaml.safe_load(cluster.kubeconfig("admin").read_text())
    kubeconfig["users"][0]["user"] = {"token": token.strip()}
    file = folder / "observer.kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfig))
    settings["data_dir"] = str(folder / "data")
    settings["notifier"]["kubeconfig"] = str(file)
    provider = settings["providers"]["cluster"]
    provider["kubeconfig"] = str(file)
    if "kubernetes" not in entry_points(group="navarch.providers").names:
        provider["type"] = PROVIDER
    if acts:
        del settings["mode"]
        provider |= acts
    written = folder / "navarch.yaml"
    written.write_text(yaml.safe_dump(settings))
    bus = folder / "nats.conf"
    text = (
        data["nats.conf"].replace("port: 4222", f"port: {port}").replace("/data", f"{folder}/bus")
    )
    bus.write_text(text.replace("http_port: 8222", "host: 127.0.0.1"))
    return written, bus


def agent_variables(port: int, node: str, kmsg: Path) -> dict[str, str]:
    """The DaemonSet's variables, as the kubelet would give them; without GPUs."""
    (container,) = manifest("DaemonSet")["spec"]["template"]["spec"]["containers"]
    found = {each["name"]: str(each.get("value", "")) for each in container["env"]}
    return found | {
        "NAVARCH_KUBERNETES_NODE": node,
        "NAVARCH_NATS_URL": f"nats://127.0.0.1:{port}",
        "NAVARCH_NATS_PASSWORD": "secret",
        "NAVARCH_KMSG": str(kmsg),
        "NAVARCH_STATE_DIR": str(kmsg.with_suffix(".agent")),
        "NAVARCH_GPU_COUNT": "0",
        "NAVARCH_CLOUD": "none",
    }


def without_heartbeat(node: dict[str, Any]) -> Any:
    """Return the parts of a node that Navarch could have changed."""
    return node["spec"], node["metadata"].get("annotations"), node["metadata"]["labels"]


async def test_it_observes_and_changes_nothing(cluster: Cluster) -> None:
    """The node is adopted and stays as it was, from the page's commands to `why`."""
    label, apply, rights, _, remove = blocks_of(PAGE, "bash")
    (name,) = await add_nodes(cluster, "gpu.example", 1)
    await cluster.patch(
        f"/api/v1/nodes/{name}", {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}}
    )
    assert name in await run(cluster, label)
    applied = await run(cluster, apply)
    assert "daemonset.apps/navarch-agent created" in applied
    assert "Warning" not in applied, applied
    allowed = await run(cluster, rights)
    verbs = {
        word
        for each in allowed.splitlines()
        if each.startswith(("nodes", "pods"))
        for word in each.rpartition("[")[2].rstrip("]").split()
    }
    assert verbs == {"list", "watch"}
    before = without_heartbeat(await node_of(cluster, name))

    (port,) = free_ports(1)
    config, bus = await configuration(cluster, port)
    kmsg = cluster.folder / "kmsg"
    kmsg.write_bytes(b"")
    common = {"NAVARCH_BUS_PASSWORD": "secret", "NAVARCH_NATS_URL": f"nats://127.0.0.1:{port}"}
    common |= {"NAVARCH_CONFIG": str(config)}
    node = name.replace(".", "-")
    logs = cluster.folder
    python = sys.executable
    async with (
        process(str(server_binary()), "-c", str(bus), log=logs / "bus.log", **common),
        process(python, "-m", "services.cli", "serve", log=logs / "serve.log", **common),
        process(
            *(python, "-m", "agent"), log=logs / "agent.log", **agent_variables(port, name, kmsg)
        ),
    ):

        async def shown(command: str, text: str) -> str:
            status, out, _ = await navarch(*command.split(), **common)
            return out if status == 0 and text in out else ""

        await eventually(lambda: shown("list", node), within_seconds=90, every=0.5)
        xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus."
        with kmsg.open("ab") as log:
            log.write(kmsg_record(1, 1, xid))
        await eventually(
            lambda: shown(f"why {node}", "it would begin"), within_seconds=60, every=0.5
        )
        await run(cluster, f"kubectl cordon {name}")
        found = await eventually(
            lambda: shown(f"why {node}", "has it cordoned"), within_seconds=30, every=0.5
        )
        assert "cordoned by kubectl" in found
        await run(cluster, f"kubectl uncordon {name}")
        assert without_heartbeat(await node_of(cluster, name)) == before
        await cluster.api.delete(f"/api/v1/nodes/{name}")

        async def retired() -> bool:
            status, out, _ = await navarch("list", **common)
            return status == 0 and node not in out

        await eventually(retired, within_seconds=120, every=1)
    # What another manifest of ours adds neither changes the namespace nor goes with this one.
    await run(cluster, f"kubectl apply -f {ROOT}/deploy/kubernetes/notifier-rbac.yaml")
    labels = (await cluster.get("/api/v1/namespaces/navarch"))["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert 'daemonset.apps "navarch-agent" deleted' in await run(cluster, remove)
    assert "navarch-notifier" in await run(cluster, "kubectl get serviceaccounts -n navarch")
