"""Workload systems that the conformance suite drives, one for each of our notifiers."""

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from schemas.duration import Duration
from services.notifier.workload.exec_notifier import ExecNotifier
from services.notifier.workload.noop_notifier import NoopNotifier
from services.notifier.workload.ray_notifier import RayNotifier
from services.notifier.workload.slurm_notifier import SlurmNotifier
from services.notifier.workload.webhook_notifier import WebhookNotifier
from services.notifier.workload.workload_notifier import Notifier
from services.primitives.clock import SystemClock
from tests.support.serving import serving

NODES = [f"n{each + 1}" for each in range(20)]
TIMEOUT = Duration(2)  # the longest that a call of a loaded test machine may take
CLOCK = SystemClock()
Mode = Literal["well", "never", "with-failures"]


@dataclass
class Site:
    """Holds nodes, their work and their cordons."""

    reversible: bool = True
    cordons: dict[str, str] = field(default_factory=dict)
    work: set[str] = field(default_factory=set)
    gpus: dict[str, set[int]] = field(default_factory=dict)
    """Node -> its GPUs that get no new work."""
    checkpoints: dict[str, set[str]] = field(default_factory=dict)
    """Node -> keys of the requests."""
    announced: dict[str, datetime] = field(default_factory=dict)
    mode: Mode = "well"
    garbage: bytes | None = None

    def place(self, node: str) -> None:
        self.work.add(node)

    def leave(self, node: str) -> None:
        self.work.discard(node)

    def is_cordoned(self, node: str) -> bool:
        return node in self.cordons

    def cordon_by_another(self, node: str) -> bool:
        del node
        return False

    def asked(self, node: str) -> int:
        return len(self.checkpoints.get(node, ()))

    def announce(self, node: str, at: datetime) -> bool:
        self.announced[node] = at
        return True

    def answer(self, mode: Mode, garbage: bytes | None = None) -> None:
        self.mode, self.garbage = mode, garbage


class NoopSite(Site):
    """Simulates a fleet without a workload system."""

    def make(self) -> Notifier:
        return NoopNotifier(options=NoopNotifier.Options(), clock=CLOCK)


@dataclass
class HttpSite(Site):
    """Serves a workload system behind HTTP."""

    url: str = ""

    async def serve(self, request: Request) -> Response:
        """Answer as the test says."""
        if self.mode == "never":
            await asyncio.sleep(60)
        if self.mode == "with-failures":
            return Response("busy", status_code=503)
        answer = await self.content(request)
        return answer if self.garbage is None else Response(self.garbage)

    async def content(self, request: Request) -> Response:
        """Return the right answer to a request."""
        raise NotImplementedError

    @asynccontextmanager
    async def running(self) -> AsyncIterator["HttpSite"]:
        """Serve it on a free port."""
        methods = ["GET", "POST", "PATCH", "DELETE"]
        routes = [Route("/{path:path}", self.serve, methods=methods)]
        async with serving(Starlette(routes=routes)) as self.url:
            yield self


class WebhookSite(HttpSite):
    """Serves the receiver of docs/webhook.md."""

    def cordoned_gpus(self, node: str) -> set[int]:
        return self.gpus.get(node, set())

    def make(self) -> Notifier:
        urls = {
            f"{each}_url": f"{self.url}/{each}"
            for each in (
                *("cordon", "uncordon", "cordon_gpus"),
                "checkpoint",
                "notify_owners",
                "drain",
                "drain_status",
            )
        }
        options = WebhookNotifier.Options(**urls, timeout=TIMEOUT, secret="0123456789abcdef")
        return WebhookNotifier(options=options, clock=CLOCK)

    async def content(self, request: Request) -> Response:
        event = request.url.path.strip("/")
        if event == "drain_status":
            node = request.query_params["node_id"]
            return JSONResponse({"drained": node in self.cordons and node not in self.work})
        order = await request.json()
        if event == "checkpoint":
            assert order["deadline"]
            key = request.headers["Idempotency-Key"]
            self.checkpoints.setdefault(order["node_id"], set()).add(key)
            if (at := self.announced.get(order["node_id"])) is not None:
                return JSONResponse({"checkpoint_at": at.isoformat()})
        elif event == "cordon_gpus":
            assert all(each["uuid"] for each in order["gpus"])
            self.gpus[order["node_id"]] = {each["index"] for each in order["gpus"]}
        elif event == "notify_owners":
            assert order["deadline"]
            assert order["reason"]
        elif event == "uncordon":
            self.cordons.pop(order["node_id"], None)
        else:
            self.cordons[order["node_id"]] = "navarch"
        return Response(status_code=204)


class RaySite(HttpSite):
    """Ray's dashboard: raylets that end once they drain and are idle."""

    def __init__(self) -> None:
        super().__init__(reversible=False)
        self.dead: set[str] = set()
        self.logs: dict[str, str] = {}
        self.looked_at: set[str] = set()
        self.orders: list[list[dict[str, Any]]] = []
        self.head_started_ms = 1
        self.job_takes_long = False
        self.names = {f"{number:08x}": each for number, each in enumerate(["head", *NODES])}

    def make(self) -> Notifier:
        options = RayNotifier.Options(dashboard=self.url, node_name="{node}", timeout=TIMEOUT)
        return RayNotifier(options=options, clock=CLOCK)

    async def content(self, request: Request) -> Response:
        path = request.url.path
        if path == "/api/jobs/" and request.method == "POST":
            return JSONResponse(self.run(await request.json()))
        if path.startswith("/api/jobs/"):
            submission = path.split("/")[3]
            if path.endswith("/logs"):
                return JSONResponse({"logs": self.logs[submission]})
            if submission:
                over = not self.job_takes_long or submission in self.looked_at
                self.looked_at.add(submission)
                return JSONResponse({"status": "SUCCEEDED" if over else "RUNNING"})
            return JSONResponse(
                [{"job_id": "02", "status": "RUNNING", "entrypoint": "python t.py"}]
            )
        if path == "/api/version":
            return JSONResponse({"ray_version": "2.60.0"})
        lists = {"nodes": self.nodes, "actors": self.actors, "tasks": list}
        found = lists[path.rpartition("/")[2]]()
        counts = {"total": len(found), "num_after_truncation": len(found)}
        return JSONResponse({"result": True, "data": {"result": {"result": found, **counts}}})

    def nodes(self) -> list[dict[str, Any]]:
        self.dead |= {each for each in self.cordons if each not in self.work}
        return [
            {
                "node_id": identity,
                "node_name": name,
                "node_ip": "10.0.0.1",
                "state": "DEAD" if name in self.dead else "ALIVE",
                "state_message": None,
                "is_head_node": name == "head",
                "labels": {},
                "start_time_ms": self.head_started_ms,
            }
            for identity, name in self.names.items()
        ]

    def actors(self) -> list[dict[str, Any]]:
        return [
            {"state": "ALIVE", "job_id": "02", "class_name": "Trainer", "node_id": identity}
            for identity, name in self.names.items()
            if name in self.work and name not in self.dead
        ]

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Carry out the orders that a job has as its last argument."""
        orders = json.loads(shlex.split(job["entrypoint"])[-1])
        self.orders.append(orders)
        for each in orders:
            name = self.names[each["raylet"]]
            self.cordons[name] = each["reason"]
            if each["remove"]:
                self.dead.add(name)
        draining = [
            identity
            for identity, name in self.names.items()
            if name in self.cordons and name not in self.dead
        ]
        answer = json.dumps({"problems": {}, "draining": draining})
        self.logs[job["submission_id"]] = f"noise\nnavarch-answer:{answer}\n"
        return {"submission_id": job["submission_id"]}


@dataclass
class FolderSite(Site):
    """A workload system whose state is a folder, in which commands read and write."""

    folder: Path = Path()

    def __post_init__(self) -> None:
        for each in ("work", "cordons", "gpus", "bin", "asked", "announced"):
            (self.folder / each).mkdir()
        self.answer("well")

    def place(self, node: str) -> None:
        (self.folder / "work" / node).touch()

    def leave(self, node: str) -> None:
        (self.folder / "work" / node).unlink()

    def is_cordoned(self, node: str) -> bool:
        return (self.folder / "cordons" / node).exists()

    def cordon_by_another(self, node: str) -> bool:
        (self.folder / "cordons" / node).write_text("ticket 12")
        return True

    def answer(self, mode: Mode, garbage: bytes | None = None) -> None:
        (self.folder / "mode").write_text("garbled" if garbage is not None else mode)
        (self.folder / "garbage").write_bytes(garbage or b"")

    def announce(self, node: str, at: datetime) -> bool:
        (self.folder / "announced" / node).write_text(at.isoformat())
        return True

    def asked(self, node: str) -> int:
        return len(list((self.folder / "asked").glob(f"{node}:*")))

    def program(self, name: str, script: str) -> str:
        """A command whose first lines do what the mode says."""
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\ncd {self.folder}\n{MODES}\n{script}")
        path.chmod(0o755)
        return str(path)


MODES = """
case $(cat mode) in
never) sleep 1000 ;;
with-failures) echo "Unable to contact slurm controller" >&2; exit 1 ;;
garbled) cat garbage; exit 0 ;;
esac
"""


class ExecSite(FolderSite):
    """A command that keeps cordons as files, with the owner's name in them."""

    def make(self) -> Notifier:
        program = self.program("scheduler", f"exec {sys.executable} -S -c '{EXEC}'")
        options = ExecNotifier.Options(
            command=(program,), timeout=Duration(2), cordons_gpus=True, notifies_owners=True
        )
        return ExecNotifier(options=options, clock=CLOCK)

    def cordoned_gpus(self, node: str) -> set[int]:
        file = self.folder / "gpus" / node
        return set(map(int, file.read_text().split())) if file.exists() else set()


EXEC = """
import json, os, sys
def work(node):
    mark = "announced/" + node
    at = {"checkpoint_at": open(mark).read()} if os.path.exists(mark) else {}
    return {"id": "job 1", **at}
asked = json.load(sys.stdin)
assert asked["version"] == 1
nodes = [each["node"] for each in asked["nodes"]]
if asked["order"] == "checkpoint":
    open("asked/" + nodes[0] + ":" + asked["key"].replace("/", ":"), "w")
if asked["order"] in ("status", "checkpoint"):
    print(json.dumps({"nodes": {each: {
        "drained": os.path.exists("cordons/" + each) and not os.path.exists("work/" + each),
        "running": [work(each)] if os.path.exists("work/" + each) else [],
    } for each in nodes}}))
for each in nodes:
    if asked["order"] == "cordon_gpus":
        open("gpus/" + each, "w").write(" ".join(str(gpu["index"]) for gpu in asked["gpus"]))
    mark = "cordons/" + each
    if asked["order"] in ("cordon", "drain") and not os.path.exists(mark):
        open(mark, "w").write("navarch")
    if asked["order"] == "uncordon" and os.path.exists(mark) and open(mark).read() == "navarch":
        os.unlink(mark)
"""


class SlurmFolder(FolderSite):
    """Provides Slurm's commands as scripts."""

    def make(self) -> Notifier:
        for name, script in SLURM.items():
            self.program(name, script)
        folder = str(self.folder / "bin")
        options = SlurmNotifier.Options(
            commands=folder,
            node_name="{node}",
            timeout=Duration(2),
            conf="slurm.conf",
            checkpoint_comment="",
        )
        return SlurmNotifier(options=options, clock=CLOCK)


SLURM = {
    "sinfo": f"""
for last; do :; done
for node in {" ".join(NODES)}; do
    state=idle; reason=
    [ -e work/$node ] && state=allocated
    [ -e cordons/$node ] && state=$state+drain && reason=$(cat cordons/$node)
    echo "$node|10.0.0.1|$node|$state|root|$reason|${{last##*|}}"
done
""",
    "squeue": """
for last; do :; done
cd work
for node in *; do
    [ -e "$node" ] || continue
    case $last in
    %A*) at=; [ -e ../announced/$node ] && at=navarch-checkpoint-at=$(cat ../announced/$node)
        echo "${node#n}|night run $at|${last##*|}" ;;
    *) echo "${node#n}|${node#n}|alice|2026-11-22T02:16:00|N/A|1|$node|RUNNING|train|${last##*|}" ;;
    esac
done
exit 0
""",
    "scontrol": """
[ "$1" = requeue ] && rm -f work/*
[ "$1" = update ] || exit 0
node=${2#NodeName=}
case $3 in
State=RESUME) rm -f cordons/$node ;;
*) echo "${4#Reason=}" > cordons/$node ;;
esac
""",
    "scancel": """
for each; do
    case $each in --signal=*) ls work | while read node; do
        touch "asked/$node:$(ls asked | wc -l)"
    done ;; esac
done
""",
}
