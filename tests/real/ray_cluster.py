"""A real Ray on this machine: a head without CPUs, and raylets that each are a node.

All share one address, so each has the label that Navarch compares first. `.ci/run` installs Ray
into `.venv/ray`; a `ray` on PATH serves as well.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx

from services.primitives.free_ports import free_ports

ROOT: Final = Path(__file__).parents[2]
READY_SECONDS_MAX: Final = 90.0
MARK: Final = "NAVARCH_RAY_TEST"
PORT_MIN: Final = 20_000
"""Ray gives its workers 10002 to 19999, and starts no head that has a port among them."""
OBJECT_STORE_BYTES: Final = 80_000_000
WORK: Final = """
import os, sys, time
import ray
stay, node, *free = sys.argv[1:]
ray.init(address="auto", namespace="ml", log_to_driver=False)

@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)
class Trainer:
    def ping(self): return 1

label = {"label_selector": {"navarch-node": node}}
if free:
    label = {"scheduling_strategy": ray.util.scheduling_strategies.NodeLabelSchedulingStrategy(
        hard={}, soft={"navarch-node": ray.util.scheduling_strategies.In(node)})}
trainer = Trainer.options(**label).remote()
ray.get(trainer.ping.remote())
open(stay, "w").close()
while os.path.exists(stay):
    time.sleep(0.2)
"""


def ray_program() -> str | None:
    """The `ray` that is used; None: there is none."""
    installed = ROOT / ".venv/ray/bin/ray"
    return str(installed) if installed.exists() else shutil.which("ray")


def missing() -> str:
    """Return why no Ray runs here, or nothing if it does."""
    if ray_program() is None:
        return "no ray here: python3 -m venv .venv/ray; .venv/ray/bin/pip install 'ray[default]'"
    return ""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition returns something, and return it."""
    end = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < end:
        with suppress(httpx.HTTPError):
            if found := condition():
                return found
        time.sleep(0.2)
    raise AssertionError(f"not within {READY_SECONDS_MAX:g} s: {what}")


class RayCluster:
    """A head, and the nodes that are added."""

    def __init__(self, folder: Path) -> None:
        """Start nothing yet."""
        self.folder = folder
        self.gcs_port, self.dashboard_port = free_ports(2, least=PORT_MIN)
        self.url = f"http://127.0.0.1:{self.dashboard_port}"
        self._http = httpx.Client(base_url=self.url, timeout=10, trust_env=False)
        program = ray_program()
        assert program is not None
        self._program = program
        self._started: list[subprocess.Popen[bytes]] = []
        self.python = str(Path(program).parent / "python")

    def start_head(self) -> None:
        """Start it, at the same address each time, in a folder where Ray finds no earlier head."""
        self._start(
            "head",
            "--head",
            f"--port={self.gcs_port}",
            f"--dashboard-port={self.dashboard_port}",
            "--num-cpus=0",
            f"--temp-dir={self.folder}/t{len(self._started)}",
            "--disable-usage-stats",
        )
        until(lambda: any(each["state"] == "ALIVE" for each in self.nodes()), "the head is up")

    def add(self, *names: str, gpus: int = 0) -> None:
        """Start nodes, one after the other: two at once may choose the same port."""
        for name in names:
            address = f"--address=127.0.0.1:{self.gcs_port}"
            resources = ("--num-cpus=2", f"--num-gpus={gpus}", f"--labels=navarch-node={name}")
            self._start(name, address, *resources)
            until(lambda each=name: each in self.alive(), f"{name} is up")

    def kill(self, name: str) -> None:
        """Kill everything of a node or of the head at once."""
        _kill(f"{self.folder}/{name}")

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that Ray lists."""
        answer = self._http.get("/api/v0/nodes", params={"limit": 1000, "detail": 1})
        return list(answer.raise_for_status().json()["data"]["result"]["result"])

    def alive(self) -> set[str]:
        """Names of the nodes that are alive."""
        return {each["node_name"] for each in self.nodes() if each["state"] == "ALIVE"}

    def work(self, submission: str, node: str, *, free: bool = False, wait: bool = True) -> Path:
        """Start a job of alice with one actor on a node; it ends when the file is removed.

        `free`: the actor may restart elsewhere.
        """
        stay = self.folder / submission
        script = self.folder / "work.py"
        script.write_text(WORK)
        command = f"{self.python} {script} {stay} {node} {'free' if free else ''}"
        body = {
            "entrypoint": command,
            "submission_id": submission,
            "metadata": {"user": "alice"},
        }
        self._http.post("/api/jobs/", json=body, timeout=60).raise_for_status()
        if wait:
            until(stay.exists, f"{submission} runs")
        return stay

    def actors(self) -> dict[str, str]:
        """Return the name of the node of each submission's living actor."""
        answer = self._http.get("/api/v0/actors", params={"limit": 1000}).json()
        jobs = {
            each["job_id"]: each["submission_id"] for each in self._http.get("/api/jobs/").json()
        }
        names = {each["node_id"]: each["node_name"] for each in self.nodes()}
        return {
            jobs[each["job_id"]]: names[each["node_id"]]
            for each in answer["data"]["result"]["result"]
            if each["class_name"] == "Trainer" and each["state"] == "ALIVE"
        }

    def close(self) -> None:
        """Kill every process of the cluster."""
        self._http.close()
        _kill(str(self.folder))
        for each in self._started:
            each.wait(10)

    def _start(self, name: str, *arguments: str) -> None:
        mark = f"{self.folder}/{name}"
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                [
                    self._program,
                    "start",
                    "--block",
                    f"--node-name={name}",
                    f"--object-store-memory={OBJECT_STORE_BYTES}",
                    *arguments,
                ],
                env=os.environ
                | {MARK: mark, "PATH": f"{Path(self._program).parent}:/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(started)


def _kill(mark: str) -> None:
    """Kill every process whose environment has the mark, or one below it."""
    for _ in range(3):
        for each in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                values = each.read_bytes().split(b"\0")
                mine = [value for value in values if value.startswith(f"{MARK}=".encode())]
                if any(f"{value.decode()}/".startswith(f"{MARK}={mark}/") for value in mine):
                    os.kill(int(each.parent.name), signal.SIGKILL)
        time.sleep(0.1)


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """A head; sockets below the folder allow it few characters."""
    with TemporaryDirectory(prefix="nr-", dir="/tmp", ignore_cleanup_errors=True) as name:
        cluster = RayCluster(Path(name))
        try:
            cluster.start_head()
            yield cluster
        finally:
            cluster.close()
