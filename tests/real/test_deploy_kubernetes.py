"""docs/deploy-kubernetes.md on a real control plane, with simulated kubelets and real programs."""

import asyncio
import json
import os
import re
import shutil
import sys
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from services.bus.nats.embedded_server import server_binary
from services.primitives.free_ports import free_ports
from services.provisioner.providers.local_gpus import kmsg_record
from tests.real.kubernetes_cluster import Cluster, parts_folder, real_cluster
from tests.real.kubernetes_work import add_nodes
from tests.real.kustomize_base import ROOT, tool
from tests.real.test_kubernetes_page import blocks_of
from tests.support.inprocess import eventually

PAGE: Final = ROOT / "docs/deploy-kubernetes.md"
PROGRAMS: Final = Path(sys.executable).parent
SERVICES: Final = (
    *("pool-manager", "health-monitor", "provisioner", "notifier", "metrics"),
    "gateway",
)
NATS_VALUES: Final = ROOT / "deploy/helm/nats-values.yaml"
EXAMPLE: Final = "--values deploy/helm/example-values.yaml"
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        parts_folder() is None or not shutil.which("kubectl") or not tool("helm"),
        reason="no Kubernetes and helm here: with Go 1.26, run tests/real/kubernetes/install.sh "
        "and install-tools.sh; kubectl",
    ),
]


class Page:
    """The page's blocks, run in order by an administrator, from a folder beside `deploy`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.blocks = blocks_of(PAGE, "bash")
        (cluster.folder / "deploy").symlink_to(ROOT / "deploy")

    async def run(self, script: str, *, fails: bool = False) -> str:
        """Run a script; it succeeds, or `fails`."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NAVARCH_")}
        helm = Path(tool("helm")).parent
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", script),
            cwd=self.cluster.folder,
            env=kept
            | {
                "KUBECONFIG": str(self.cluster.kubeconfig("admin")),
                "PATH": f"{PROGRAMS}:{helm}:{os.environ['PATH']}",
                "HELM_CACHE_HOME": str(self.cluster.folder / "helm"),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        assert (process.returncode != 0) == fails, (script, out.decode())
        return out.decode()

    async def prepare(self) -> None:
        """Namespaces, keys and Secrets, on a cluster of three nodes of which two have GPUs."""
        names = await add_nodes(self.cluster, "gpu", 3)
        labels = {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}}
        for name in names[:2]:
            await self.cluster.patch(f"/api/v1/nodes/{name}", labels)
        for each in self.blocks[:3]:
            await self.run(each)

    async def pods(self, component: str) -> list[dict[str, Any]]:
        """Pods of a part that are not on their way out."""
        label = f"labelSelector=app.kubernetes.io/component={component}"
        found = (await self.cluster.get(f"/api/v1/pods?{label}"))["items"]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    async def images(self) -> set[str]:
        """Return what the pods of all services run."""
        pods = [each for part in SERVICES for each in await self.pods(part)]
        return {each["spec"]["containers"][0]["image"] for each in pods}


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """Start a control plane without anything of Navarch."""
    async with real_cluster(tmp_path) as made:
        yield Page(made)


async def test_the_page_installs_upgrades_and_removes(page: Page) -> None:
    """Every command, and between them: where the pods are, what a bad release and a drain do."""
    await page.prepare()
    install, upgrade, kustomize, remove = page.blocks[3:]
    said = await page.run(install)
    assert "Phase:          Succeeded" in said
    assert "arning" not in said, said
    for part in SERVICES:
        nodes = {each["spec"]["nodeName"] for each in await page.pods(part)}
        assert len(nodes) == 2, part
    agents = {each["spec"]["nodeName"] for each in await page.pods("agent")}
    assert agents == {"gpu-0", "gpu-1"}

    await page.run(upgrade)

    async def rolled_back() -> bool:  # helm waits for the pods that come, not for those that go
        return await page.images() == {"navarch:0.1.0"}

    await eventually(rolled_back, within_seconds=60, every=0.5)
    history = json.loads(await page.run("helm history navarch --namespace navarch --output json"))
    assert [each["description"] for each in history] == [
        "Install complete",
        "Upgrade complete",
        "Rollback to 1",
    ]

    # A release whose pods never become ready ends nothing, and is taken back.
    before = {each["metadata"]["uid"] for each in await page.pods("gateway")}
    bad = f"helm upgrade navarch deploy/helm/navarch --namespace navarch {EXAMPLE} --atomic"
    bad += " --timeout 15s --set services.gateway.nodeSelector.none=here --set image.tag=0.1.2"
    assert "release navarch failed" in await page.run(bad, fails=True)
    kept = {each["metadata"]["uid"] for each in await page.pods("gateway")}
    assert len(before & kept) >= 1

    await page.run("kubectl drain gpu-1 --ignore-daemonsets --delete-emptydir-data --timeout 120s")

    async def moved() -> bool:
        pods = [await page.pods(part) for part in SERVICES]
        nodes = [sorted(each["spec"].get("nodeName", "") for each in part) for part in pods]
        return all(each == ["gpu-0", "gpu-2"] for each in nodes)

    await eventually(moved, within_seconds=60, every=0.5)
    shown = await page.run(kustomize)
    assert shown.count("deployment.apps/navarch-") == len(SERVICES)
    assert "arning" not in shown.replace("Warning: resource", "")
    await page.run(remove)
    left = await page.run("kubectl get deployment,daemonset,networkpolicy --all-namespaces")
    assert "No resources found" in left


async def test_the_namespace_refuses_what_is_privileged(page: Page) -> None:
    """An agent's pod in the services' namespace is not accepted."""
    await page.run(page.blocks[0])
    values = "--set config.providers.cluster.agent_account=navarch/navarch-agent"
    wrong = f"helm template navarch deploy/helm/navarch --namespace navarch {EXAMPLE} {values}"
    text = await page.run(f"{wrong} --set agents.namespace=navarch --kube-version 1.37")
    agent = next(each for each in yaml.safe_load_all(text) if each and each["kind"] == "DaemonSet")
    pod = agent["spec"]["template"] | {"apiVersion": "v1", "kind": "Pod"}
    pod["metadata"]["name"] = "agent"
    reply = await page.cluster.api.post("/api/v1/namespaces/navarch/pods", json=pod)
    assert reply.status_code == 403
    assert 'violates PodSecurity "restricted' in reply.json()["message"]


def bus_pod() -> dict[str, Any]:
    """A pod as the official chart of NATS makes it: of its own part, merged and patched by values.

    The parts that matter are those that a patch needs: the lists of volumes and of their mounts.
    """
    values = yaml.safe_load(NATS_VALUES.read_text())
    own, pod = values["container"], values["podTemplate"]
    container: dict[str, Any] = {"name": "nats", "image": f"nats:{own['image']['tag']}"}
    container |= {
        "volumeMounts": [{"name": "data", "mountPath": "/data/jetstream"}],
        **own["merge"],
    }
    container["volumeMounts"] += [each["value"] for each in own["patch"]]
    spec: dict[str, Any] = {"containers": [container], **pod["merge"]["spec"]}
    spec["volumes"] = [{"name": "data", "emptyDir": {}}, *(each["value"] for each in pod["patch"])]
    about = {"name": "navarch-nats-0", "namespace": "navarch"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


async def test_the_restricted_namespace_accepts_the_bus(page: Page) -> None:
    """Strictly; its lame-duck hook names the file that the server writes, where it may write."""
    await page.run(page.blocks[0])
    pod = bus_pod()
    path = "/api/v1/namespaces/navarch/pods?fieldValidation=Strict"
    reply = await page.cluster.api.post(path, json=pod)
    assert reply.is_success, reply.text
    (container,) = pod["spec"]["containers"]
    written = container["args"][container["args"].index("--pid") + 1]
    assert container["lifecycle"]["preStop"]["exec"]["command"][1] == f"-sl=ldm={written}"
    mounts = [each for each in container["volumeMounts"] if not each.get("readOnly")]
    assert str(Path(written).parent) in {each["mountPath"] for each in mounts}
    assert all(container["resources"][each]["memory"] for each in ("requests", "limits"))


class Host:
    """Runs the pods' programs on this machine, with what the kubelet would give them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.folder = page.cluster.folder
        (self.port,) = free_ports(1)
        self.stack = AsyncExitStack()

    async def files(self, namespace: str, secret: str, folder: Path) -> Path:
        """Write a Secret as a volume."""
        found = await self.page.cluster.get(f"/api/v1/namespaces/{namespace}/secrets/{secret}")
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in found["data"].items():
            (folder / name).write_bytes(b64decode(data))
        return folder

    async def start(self, name: str, *command: str, **variables: str) -> None:
        """Start a program that ends with the test."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NAVARCH_")}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=kept | variables, cwd=ROOT
            )

        async def end() -> None:
            if process.returncode is None:
                process.terminate()
            await process.wait()

        self.stack.push_async_callback(end)

    async def bus(self) -> None:
        """The first of the three servers, alone: its files are those of the Secret."""
        place = await self.files("navarch", "navarch-nats", self.folder / "server")
        (place / "tls").mkdir()
        (place / "server.pem").rename(place / "tls/server.pem")
        text = (place / "nats-navarch-nats-0.conf").read_text()
        text = re.sub(r"(?m)^server_name: .*\n^cluster \{.*?^\}\n", "", text, flags=re.DOTALL)
        text = text.replace("/etc/navarch/bus", str(place)).replace("/data", f"{place}/data")
        text = text.replace("0.0.0.0:4222", f"127.0.0.1:{self.port}")
        (place / "nats.conf").write_text(text.replace("0.0.0.0:8222", "127.0.0.1:-1"))
        await self.start("bus", str(server_binary()), "-c", str(place / "nats.conf"))

    async def service(self, name: str, template: dict[str, Any], config: str) -> str:
        """A Deployment's container; return its address."""
        (container,) = template["spec"]["containers"]
        place, port = self.folder / name, free_ports(1)[0]
        await self.files("navarch", f"navarch-bus-{name}", place)
        account = template["spec"]["serviceAccountName"]
        token = await self.page.run(f"kubectl create token {account} --namespace navarch")
        kubeconfig = yaml.safe_load(self.page.cluster.kubeconfig("admin").read_text())
        kubeconfig["users"][0]["user"] = {"token": token.strip()}
        (place / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        settings = yaml.safe_load(config)
        settings |= {"data_dir": str(place / "data")}
        settings["nats"] |= {"replicas": 1, "tls_ca_file": str(place / "ca.pem")}
        settings["http"] |= {"host": "127.0.0.1", "port": port}
        settings["gateway"] |= {
            "host": "127.0.0.1",
            "port": port,
            "tokens": {"test": {"sha256": "0" * 64}},
        }
        for each in (settings["notifier"], settings["providers"]["cluster"]):
            each["kubeconfig"] = str(place / "kubeconfig")
        (place / "navarch.yaml").write_text(yaml.safe_dump(settings))
        given = {
            each["name"]: each["value"].replace("/run/navarch", str(place))
            for each in container["env"]
        }
        given |= {
            "NAVARCH_CONFIG": str(place / "navarch.yaml"),
            "NAVARCH_NATS_URL": f"tls://127.0.0.1:{self.port}",
        }
        await self.start(name, sys.executable, *container["command"][1:], **given)
        return f"http://127.0.0.1:{port}"

    async def agent(self, pod: dict[str, Any], token: str = "", node: str = "") -> Path:
        """An agent's container without GPUs; return its state directory.

        `token` in place of its pod's; `node` in place of the one that the pod is on.
        """
        name, host = pod["metadata"]["name"], node or pod["spec"]["nodeName"]
        place = await self.files("navarch-agents", "navarch-agent", self.folder / f"{name}{node}")
        (place / "token").write_text(token or await self.token(pod))
        (place / "kmsg").write_bytes(b"")
        (container,) = pod["spec"]["containers"]
        given = {each["name"]: str(each.get("value", "")) for each in container["env"]}
        for variable in ("BOOTSTRAP_FILE", "TLS_CA_FILE"):
            key = f"NAVARCH_NATS_{variable}"
            given[key] = given[key].replace("/run/navarch", str(place))
        given |= {
            "NAVARCH_KUBERNETES_NODE": host,
            "NAVARCH_NATS_URL": f"tls://127.0.0.1:{self.port}",
            "NAVARCH_POD_TOKEN_FILE": str(place / "token"),
            "NAVARCH_NATS_CREDS_FILE": str(place / "state/nats.creds"),
            "NAVARCH_STATE_DIR": str(place / "state"),
            "NAVARCH_KMSG": str(place / "kmsg"),
            "NAVARCH_GPU_COUNT": "0",
            "NAVARCH_CLOUD": "none",
        }
        await self.start(f"{name}{node}", sys.executable, "-m", "agent", **given)
        return place

    async def token(self, pod: dict[str, Any], audience: str = "navarch") -> str:
        """Return what the kubelet projects into the pod."""
        about = pod["metadata"]
        return await self.page.run(
            f"kubectl create token {pod['spec']['serviceAccountName']} --namespace "
            f"{about['namespace']} --audience {audience} --bound-object-kind Pod "
            f"--bound-object-name {about['name']} --bound-object-uid {about['uid']}"
        )


@asynccontextmanager
async def host(page: Page) -> AsyncIterator[Host]:
    """Use this machine as the pods' host."""
    made = Host(page)
    async with made.stack:
        yield made


async def test_the_programs_run_with_what_the_page_made(page: Page) -> None:
    """Services are ready, agents enroll by their pods' tokens alone, and a fault is judged."""
    await page.prepare()
    await page.run(page.blocks[3])
    await page.run("navarch nats-config user add alice --role operator")
    config = await page.cluster.get("/api/v1/namespaces/navarch/configmaps/navarch-config")
    async with host(page) as machine:
        await machine.bus()
        addresses = []
        for name in SERVICES:
            found = await page.cluster.get(
                f"/apis/apps/v1/namespaces/navarch/deployments/navarch-{name}"
            )
            template = found["spec"]["template"]
            addresses.append(await machine.service(name, template, config["data"]["navarch.yaml"]))
        test = next(
            each
            for each in yaml.safe_load_all(
                await page.run("helm get hooks navarch --namespace navarch")
            )
            if each
        )
        program = test["spec"]["containers"][0]["command"][2]
        (machine.folder / "helm-test.py").write_text(program)
        check = f"SERVICES='{' '.join(addresses)}' {sys.executable} helm-test.py 2>&1"

        async def ready() -> str:
            said = await page.run(f"{check} || true")
            return said if said.count(" ready") == len(SERVICES) else ""

        await eventually(ready, within_seconds=120, every=1)

        one, two = sorted(await page.pods("agent"), key=lambda each: each["spec"]["nodeName"])
        agents = [await machine.agent(each) for each in (one, two)]
        # The pod of one node asks for the other's credentials; a token is for another audience.
        thief = await machine.agent(one, node="gpu-1")
        wrong = await machine.agent(
            two, await machine.token(two, "https://kubernetes.default.svc"), "gpu-0"
        )

        async def shown(command: str, *texts: str) -> str:
            alice = "NAVARCH_NATS_CREDS_FILE=bus/creds/alice.creds SSL_CERT_FILE=bus/tls/ca.pem"
            url = f"--nats-url tls://127.0.0.1:{machine.port}"
            said = await page.run(f"{alice} navarch {command} {url} || true")
            return said if all(each in said for each in texts) else ""

        listed = lambda: shown("list", "gpu-0", "gpu-1", "healthy")  # noqa: E731
        await eventually(listed, within_seconds=120, every=1)
        xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus."
        with (agents[0] / "kmsg").open("ab") as log:
            log.write(kmsg_record(1, 1, xid))
        await eventually(lambda: shown("why gpu-0", "it would begin"), within_seconds=90, every=1)
        refused = await eventually(
            lambda: shown("timeline gpu-1", "credentials refused"),
            within_seconds=60,
            every=1,
        )
        assert "runs on node gpu-0" in refused
        for each in (thief, wrong):
            assert not (each / "state/nats.creds").exists()
