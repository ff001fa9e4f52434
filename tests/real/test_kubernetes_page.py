"""Every command of docs/kubernetes.md, run against a real control plane."""

import asyncio
import os
import re
import shutil
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.settings import NOTIFIER_PLUGINS, PluginSettings
from schemas.topology import NODES
from schemas.workload_checks import WorkloadCheckRequest
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.notifier.workload.kubernetes.gpu_taints import FAULTY
from services.notifier.workload.kubernetes_notifier import KubernetesNotifier
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import Notifier
from services.notifier.workload_endpoints import WorkloadCheckEndpoint
from services.primitives.clock import SystemClock
from services.settings.plugin_loader import make_plugin
from tests.real.kubernetes_cluster import Cluster, needs_kubernetes, real_cluster
from tests.real.kubernetes_work import add_nodes, node_of, order, until_drained

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/kubernetes.md"
KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.real,
    needs_kubernetes("kubectl"),
]


def blocks_of(page: Path, language: str) -> list[str]:
    """Return a page's blocks of a language, in order."""
    found = re.findall(
        rf"^ *```{language}\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE
    )
    return [textwrap.dedent(each) for each in found]


def blocks(language: str) -> list[str]:
    """Return the blocks of a language in docs/kubernetes.md, in order."""
    return blocks_of(PAGE, language)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a control plane without anything of Navarch."""
    async with real_cluster(tmp_path) as made:
        yield made


async def run(cluster: Cluster, script: str) -> str:
    """Run a block as an administrator, from a folder beside `deploy`."""
    link = cluster.folder / "deploy"
    if not link.exists():
        link.symlink_to(ROOT / "deploy")
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script),
        cwd=cluster.folder,
        env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig("admin"))},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, (script, out.decode())
    return out.decode()


async def check(notifier: Notifier, name: str) -> None:
    """`navarch workload check training --node NODE`, as the notifier answers it."""
    server = MemoryServer(SystemClock())
    bus = MemoryBus(server, PerfectLink())
    await set_up(bus, SystemClock(), replicas=1)
    record = NodeRecord(pool="training", node="t-1", hostname=name.upper(), state="active")
    await bus.put(NODES, node_key("training", "t-1"), encode(record))
    endpoint = WorkloadCheckEndpoint(PoolNotifiers(notifier, {}, {}, bus), bus)
    answer = await endpoint.check(WorkloadCheckRequest(pool="training", node="t-1"))
    await bus.close()
    server.close()
    said = [(each.what, each.passed, each.detail) for each in answer.checks]
    assert said[1:] == [
        ("rights", True, "all 10 that are needed"),
        ("list nodes", True, "1 nodes, 0 cordoned, 0 of them by Navarch"),
        ("t-1", True, "no work"),
        ("cordon and uncordon t-1", True, ""),
    ], said


async def test_the_page_connects_a_cluster(cluster: Cluster) -> None:
    """Rights, kubeconfig, configuration, a cordon that kubectl shows, and the way back by hand."""
    (name,) = await add_nodes(cluster, "gpu", 1)
    rights, login, names, look, checkpoint, gpus, undo, undo_gpus = blocks("bash")
    await run(cluster, rights)
    await run(cluster, login)
    written = (cluster.folder / "navarch.kubeconfig").read_text()
    assert [each["name"] for each in yaml.safe_load(written)["users"]] == ["navarch"]
    assert f"aws:///us-east-1a/i-{name}" in await run(cluster, names)

    settings = yaml.safe_load(blocks("yaml")[0])["notifiers"]["research"]
    options = {key: value for key, value in settings.items() if key != "type"}
    options["kubeconfig"] = str(cluster.folder / "navarch.kubeconfig")
    made = make_plugin(
        NOTIFIER_PLUGINS,
        PluginSettings(type=settings["type"], options=options),
        None,
        {"kubernetes": KubernetesNotifier},
        clock=SystemClock(),
    )
    try:
        await check(made, name)
        await made.cordon(order(name))
        shown = await run(cluster, look)
        assert "SchedulingDisabled" in shown
        assert re.search(r"NavarchCordoned +True .* XID 79 on GPU 3", shown), shown
        assert re.search(r"Normal +NavarchCordoned .* navarch +XID 79 on GPU 3", shown), shown
        assert "node.navarch.io/cordoned:NoSchedule" in shown
        await made.drain(order(name, "drain"))
        await until_drained(made, name)
    finally:
        await made.close()
    assert "navarch-notifier-checkpoint created" in await run(cluster, checkpoint)
    assert "navarch-notifier-gpus created" in await run(cluster, gpus)
    await cluster.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {FAULTY: "3"}}})
    await run(cluster, undo)
    await run(cluster, undo_gpus)
    node = await node_of(cluster, name)
    assert "unschedulable" not in node["spec"]
    assert "navarch" not in str(node["spec"].get("taints", []))
    assert "navarch" not in str(node["metadata"].get("annotations", {}))
    assert FAULTY not in node["metadata"]["labels"]
