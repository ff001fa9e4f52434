"""A real Kubernetes control plane on loopback: etcd, the API server, its controllers and scheduler.

kwok takes the place of the kubelets: pods run and terminate, nodes are ready.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import ssl
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from services.primitives.free_ports import free_ports
from tests.support.inprocess import eventually

HERE: Final = Path(__file__).parent / "kubernetes"
PARTS: Final = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kwok")
CONTROLLERS: Final = (
    "disruption-controller,job-controller,replicaset-controller,deployment-controller,"
    "statefulset-controller,daemonset-controller,pod-garbage-collector-controller,garbage-collector-controller,"
    "node-lifecycle-controller,taint-eviction-controller,resourcequota-controller"
)
ADMISSION: Final = """\
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ResourceQuota
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: ResourceQuotaConfiguration
      limitedResources:
        - resource: pods
          matchScopes:
            - scopeName: PriorityClass
              operator: In
              values: [system-node-critical, system-cluster-critical]
"""
"""Pods of the system's classes need a quota, as in GKE's clusters."""
AUDIT: Final = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - level: Metadata
    users:
      - system:serviceaccount:navarch:navarch-notifier
      - system:serviceaccount:navarch:navarch-observer
  - {level: None}
"""
AUDIT_LOG: Final = "audit.log"
ACCOUNTS: Final = ("notifier", "pool-manager")
"""Services whose service accounts the tests act as, with the rights that the manifests give."""
ISSUER: Final = "https://kubernetes.default.svc"
TOLERATED_SECONDS: Final = 60
"""The server accepts a token for so long after its end, because clocks differ."""
START_SECONDS_MAX: Final = 90.0


def parts_folder() -> Path | None:
    """Return where tests/real/kubernetes/install.sh has put the programs; None: nowhere."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    named = os.environ.get("NAVARCH_KUBERNETES_PARTS")
    folder = Path(named or Path(cache) / "navarch" / "kubernetes-1.37.2")
    return folder if all(shutil.which(each, path=str(folder)) for each in PARTS) else None


def needs_kubernetes(*programs: str) -> pytest.MarkDecorator:
    """Skip where the parts of a control plane, or other programs, are not there."""
    lacking = [each for each in programs if shutil.which(each) is None]
    reason = "no Kubernetes here: with Go 1.26, run tests/real/kubernetes/install.sh"
    return pytest.mark.skipif(
        parts_folder() is None or bool(lacking), reason="; ".join([reason, *programs])
    )


class Cluster:
    """Holds the running programs and a client with every right."""

    def __init__(self, parts: Path, folder: Path) -> None:
        """Keep everything in `folder`."""
        self._parts = parts
        self.folder = folder
        self.port, self._etcd, self._peer = free_ports(3)
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._tokens = {each: secrets.token_hex(16) for each in ("admin", *ACCOUNTS)}
        self._api: httpx.AsyncClient | None = None

    @property
    def api(self) -> httpx.AsyncClient:
        """Return a client with every right."""
        assert self._api is not None
        return self._api

    async def start(self) -> None:
        """Start every program."""
        self._write_keys()
        await self._start(
            "etcd",
            f"--data-dir={self.folder}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls=http://127.0.0.1:{self._etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{self._etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{self._peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{self._peer}",
            f"--initial-cluster=default=http://127.0.0.1:{self._peer}",
        )
        await self.start_api()
        admin = self.kubeconfig("admin")
        await self._start(
            "kube-controller-manager",
            f"--kubeconfig={admin}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--controllers={CONTROLLERS}",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )
        scheduler = self.folder / "scheduler.yaml"
        scheduler.write_text(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
            f"clientConnection: {{kubeconfig: {admin}, qps: 500, burst: 1000}}\n"
            "leaderElection: {leaderElect: false}\n"
        )
        await self._start("kube-scheduler", f"--config={scheduler}", "--secure-port=0")
        await self._start(
            "kwok",
            f"--kubeconfig={admin}",
            "--manage-all-nodes=true",
            "--node-lease-duration-seconds=40",
            f"--config={HERE / 'stages.yaml'}",
        )

    async def start_api(self) -> None:
        """Start the API server and wait until it is ready."""
        certificates = self.folder / "certificates"
        admission, audit = self.folder / "admission.yaml", self.folder / "audit.yaml"
        admission.write_text(ADMISSION)
        audit.write_text(AUDIT)
        await self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self.port}",
            f"--cert-dir={certificates}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            f"--token-auth-file={self.folder}/tokens.csv",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={self.folder}/accounts.pub",
            f"--service-account-signing-key-file={self.folder}/accounts.key",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
            f"--admission-control-config-file={admission}",
            f"--audit-policy-file={audit}",
            f"--audit-log-path={self.folder / AUDIT_LOG}",
            "--max-requests-inflight=2000",
            "--max-mutating-requests-inflight=1000",
        )

        async def ready() -> bool:
            if not (certificates / "apiserver.crt").exists():
                return False
            if self._api is None:
                self._api = httpx.AsyncClient(
                    base_url=f"https://127.0.0.1:{self.port}",
                    headers={"Authorization": f"Bearer {self._tokens['admin']}"},
                    verify=ssl.create_default_context(cafile=certificates / "apiserver.crt"),
                    timeout=30,
                )
            with contextlib.suppress(httpx.HTTPError):
                return (await self._api.get("/readyz")).status_code == 200
            return False

        await eventually(ready, within_seconds=START_SECONDS_MAX, every=0.1)

    async def kill(self, program: str) -> None:
        """SIGKILL a program."""
        process = self._processes.pop(program)
        process.kill()
        await process.wait()

    async def stop(self) -> None:
        """End every program."""
        if self._api is not None:
            await self._api.aclose()
        for name in list(self._processes):
            await self.kill(name)

    def kubeconfig(self, user: str, port: int = 0) -> Path:
        """Write a kubeconfig of `admin` or a service, to the API server or a proxy before it."""
        file = self.folder / f"{user}-{port}.kubeconfig"
        authority = str(self.folder / "certificates" / "apiserver.crt")
        server = f"https://127.0.0.1:{port or self.port}"
        cluster = {"server": server, "certificate-authority": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        file.write_text(json.dumps(config))
        file.chmod(0o600)
        return file

    def short_lived(self, uid: str, seconds: float) -> Path:
        """Write a kubeconfig with a token of the notifier's account, as the server makes them.

        The server itself makes none that lives for less than ten minutes.
        """
        now = int(time.time())
        account = {"name": "navarch-notifier", "uid": uid}
        claims = {
            "iss": ISSUER,
            "aud": [ISSUER],
            "sub": "system:serviceaccount:navarch:navarch-notifier",
            "iat": now - TOLERATED_SECONDS,
            "nbf": now - TOLERATED_SECONDS,
            "exp": int(now + seconds) - TOLERATED_SECONDS,
            "kubernetes.io": {"namespace": "navarch", "serviceaccount": account},
        }
        self._tokens["short-lived"] = self._signed(claims)
        return self.kubeconfig("short-lived")

    def _signed(self, claims: dict[str, Any]) -> str:
        key = load_pem_private_key((self.folder / "accounts.key").read_bytes(), None)
        assert isinstance(key, rsa.RSAPrivateKey)
        text = ".".join(_part(json.dumps(each).encode()) for each in ({"alg": "RS256"}, claims))
        signature = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{_part(signature)}"

    async def touch_and_compact(self) -> None:
        """Have the store forget every version but a new one; the API server does not run."""
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._etcd}") as store:
            key = b64encode(b"test").decode()
            reply = await store.post("/v3/kv/put", json={"key": key, "value": key})
            version = reply.json()["header"]["revision"]
            reply = await store.post("/v3/kv/compaction", json={"revision": version})
            assert reply.is_success, reply.text

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create an object; return it as stored."""
        reply = await self.api.post(collection(manifest), json=manifest)
        assert reply.is_success, reply.text
        return dict(reply.json())

    async def apply(self, file: Path) -> None:
        """Create or replace what a file of manifests has, and the namespaces that it lacks."""
        for manifest in yaml.safe_load_all(file.read_text()):
            if name := manifest["metadata"].get("namespace"):
                body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                await self.api.post("/api/v1/namespaces", json=body)
            reply = await self.api.post(collection(manifest), json=manifest)
            if reply.status_code == 409:
                where = f"{collection(manifest)}/{manifest['metadata']['name']}"
                reply = await self.api.put(where, json=manifest)
            assert reply.is_success, reply.text

    async def get(self, path: str) -> dict[str, Any]:
        """Read an object or list."""
        reply = await self.api.get(path)
        assert reply.is_success, reply.text
        return dict(reply.json())

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        """Merge into an object."""
        kind = {"Content-Type": "application/merge-patch+json"}
        reply = await self.api.patch(path, content=json.dumps(body), headers=kind)
        assert reply.is_success, reply.text

    async def _start(self, program: str, *arguments: str) -> None:
        with (self.folder / f"{program}.log").open("ab") as log:
            self._processes[program] = await asyncio.create_subprocess_exec(
                str(self._parts / program), *arguments, stdout=log, stderr=log
            )

    def _write_keys(self) -> None:
        users = {"admin": 'admin,admin,"system:masters"'}
        users |= {each: f"system:serviceaccount:navarch:navarch-{each},{each}" for each in ACCOUNTS}
        lines = [f"{self._tokens[each]},{user}" for each, user in users.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.folder / "accounts.key").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        (self.folder / "accounts.pub").write_bytes(
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )


def _part(data: bytes) -> str:
    """Part of a token."""
    return urlsafe_b64encode(data).decode().rstrip("=")


PLURALS: Final = {"NetworkPolicy": "networkpolicies"}
CLUSTER_WIDE: Final = frozenset(
    {
        *("Node", "Namespace", "ClusterRole", "ClusterRoleBinding"),
        *("DeviceClass", "ResourceSlice", "CustomResourceDefinition"),
        *("PriorityClass", "RuntimeClass"),
    }
)


def collection(manifest: dict[str, Any]) -> str:
    """The path to which an object is posted."""
    version, kind = manifest["apiVersion"], manifest["kind"]
    base = "/api/v1" if version == "v1" else f"/apis/{version}"
    if kind not in CLUSTER_WIDE:
        base += f"/namespaces/{manifest['metadata'].get('namespace', 'default')}"
    plural = kind.lower() + ("es" if kind.endswith("s") else "s")
    return f"{base}/{PLURALS.get(kind, plural)}"


@asynccontextmanager
async def real_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """Run a cluster for the duration of a test."""
    parts = parts_folder()
    assert parts is not None
    cluster = Cluster(parts, folder)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()
