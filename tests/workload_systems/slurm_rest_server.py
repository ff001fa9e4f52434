"""A strict slurmrestd, by the OpenAPI that SchedMD publishes for v0.0.39 to v0.0.44.

It refuses fields, types and words that the description of its version does not have, and answers in
the forms of that version. What slurmctld does with a change is written after scontrol's manual; no
slurmrestd of these versions was run.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.support.serving import serving

TOKEN = "strict.jwt.token"
USER = "navarch"
STATE_WORDS = """
    INVALID UNKNOWN DOWN IDLE ALLOCATED ERROR MIXED FUTURE RESERVED UNDRAIN CLOUD RESUME DRAIN
    COMPLETING NOT_RESPONDING POWERED_DOWN FAIL POWERING_UP MAINTENANCE REBOOT_REQUESTED
    REBOOT_CANCELED POWERING_DOWN DYNAMIC_FUTURE REBOOT_ISSUED PLANNED INVALID_REG POWER_DOWN
    POWER_UP POWER_DRAIN DYNAMIC_NORM
"""
UPDATE_FIELDS: Mapping[str, type] = {
    **dict.fromkeys(("comment", "extra", "gres", "reason", "reason_uid", "topology_str"), str),
    **dict.fromkeys(("features", "features_act", "address", "hostname", "name", "state"), list),
    **dict.fromkeys(("resume_after", "weight"), dict),
    "cpu_bind": int,
}
"""`update_node_msg`; v0.0.39 to v0.0.42 lack `topology_str`."""
FLAG_WORDS = """
    BATCH_JOB ARRAY_TASK FULL_STEPS_ONLY FULL_JOB FEDERATION_REQUEUE HURRY OUT_OF_MEMORY
    NO_SIBLING_JOBS RESERVATION_JOB VERBOSE CRON_JOBS WARNING_SENT
"""
QUEUE_FIELDS = ("partition", "state_reason", "tres_per_node", "array_task_string", "features")
TOPOLOGY_SINCE, STATE_LISTS_SINCE, FLAGS_SINCE = 43, 40, 40


@dataclass
class StrictNode:
    """Describes one node of the cluster."""

    state: set[str] = field(default_factory=lambda: {"IDLE"})
    reason: str = ""
    user: str = ""
    address: str = "10.0.0.1"
    hostname: str = "host"


@dataclass
class StrictSlurm:
    """The cluster behind it, and what was ordered."""

    number: int
    nodes: dict[str, StrictNode] = field(default_factory=dict)
    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    fails: Response | None = None
    """Answered to everything but its description."""
    hangs_seconds: float = 0.0

    @property
    def base(self) -> str:
        return f"/slurm/v0.0.{self.number}"

    def description(self, _: Request) -> Response:
        node = f"{self.base}/node/{{node_name}}"
        paths: dict[str, Any] = {
            f"{self.base}/nodes": {"get": {}},
            f"{self.base}/jobs": {"get": {}},
            f"{self.base}/ping": {"get": {}},
            node: {"get": {}, "post": {}, "delete": {}},
            f"{self.base}/job/{{job_id}}": {"get": {}, "post": {}, "delete": {}},
        }
        return JSONResponse({"openapi": "3.0.3", "info": {}, "paths": paths})

    def answer(self, code: int = 200, error: str = "", **more: Any) -> Response:
        errors = [{"error_number": 1, "error": error, "description": error}] if error else []
        return JSONResponse({"meta": {}, "warnings": [], "errors": errors} | more, code)

    def number_of(self, value: int | None) -> Any:
        """A number as this version writes it."""
        return {"set": value is not None, "infinite": False, "number": value or 0}

    def list_nodes(self, _: Request) -> Response:
        shown = [
            {
                "name": name,
                "address": each.address,
                "hostname": each.hostname,
                "state": sorted(each.state),
                "reason": each.reason,
                "reason_set_by_user": each.user,
                "partitions": ["gpu"],
                "boot_time": self.number_of(5),
            }
            for name, each in self.nodes.items()
        ]
        return self.answer(nodes=shown, last_update=self.number_of(1))

    def list_jobs(self, _: Request) -> Response:
        lists = self.number >= STATE_LISTS_SINCE
        shown = [
            {
                "job_id": number,
                "job_state": each["state"] if lists else each["state"][0],
                "array_job_id": self.number_of(0),
                "array_task_id": self.number_of(None),
                "het_job_id": self.number_of(0),
                "het_job_offset": self.number_of(0),
                "user_name": "alice",
                "start_time": self.number_of(start) if lists else start,
                "end_time": self.number_of(each["end"]) if lists else each["end"],
                "time_limit": self.number_of(30),
                "nodes": each["nodes"],
                "node_count": self.number_of(2),
                "name": "train",
                "comment": each.get("comment", ""),
                "admin_comment": each.get("admin_comment", ""),
                **{key: each.get(key, "") for key in QUEUE_FIELDS},
            }
            for number, each in self.jobs.items()
            for start in (each.get("start", 0),)
        ]
        return self.answer(jobs=shown, last_update=self.number_of(1))

    def ping(self, _: Request) -> Response:
        return self.answer(pings=[{"hostname": "head", "mode": "primary", "pinged": "UP"}])

    async def update(self, request: Request) -> Response:
        name, body = request.path_params["name"], await request.json()
        if wrong := self.wrong(body):
            return self.answer(400, wrong)
        node = self.nodes.get(name)
        if node is None:
            return self.answer(500, "Invalid node name specified")
        states = body.get("state", [])
        self.calls.append(f"{name} {'+'.join(states)} {body.get('reason', '')}".strip())
        if "RESUME" in states and not node.state & {"DRAIN", "DOWN"}:
            return self.answer(500, "Invalid node state specified")
        match states:
            case ["DRAIN"] | ["DOWN"] if not body.get("reason") and not node.reason:
                return self.answer(500, "You must specify a reason when DRAINING or DOWNING")
            case ["DRAIN"]:
                node.state |= {"DRAIN"}
            case ["DOWN"]:
                node.state = (node.state - {"IDLE", "ALLOCATED", "MIXED"}) | {"DOWN"}
                for job in [each for each, is_ in self.jobs.items() if name in is_["nodes"]]:
                    self.calls.append(f"requeued {job}")
                    del self.jobs[job]
            case ["RESUME"]:
                node.state, node.reason, node.user = {"IDLE"}, "", ""
            case ["POWER_DOWN", "POWERED_DOWN"]:
                node.state |= {"POWERING_DOWN"}
        if "RESUME" not in states and body.get("reason"):
            node.reason, node.user = body["reason"], USER
        node.address = (body.get("address") or [node.address])[0]
        node.hostname = (body.get("hostname") or [node.hostname])[0]
        return self.answer()

    def wrong(self, body: Any) -> str:
        """Return what the description does not allow; empty: nothing."""
        if not isinstance(body, dict):
            return "expected an object"
        for key, value in body.items():
            kind = UPDATE_FIELDS.get(key)
            if kind is None or (key == "topology_str" and self.number < TOPOLOGY_SINCE):
                return f"unknown field {key}"
            if not isinstance(value, kind):
                return f"{key} is no {kind.__name__}"
            if kind is list and not all(isinstance(each, str) for each in value):
                return f"{key} is no list of strings"
        unknown = set(body.get("state", [])) - set(STATE_WORDS.split())
        return f"unknown state {sorted(unknown)}" if unknown else ""

    def delete_node(self, request: Request) -> Response:
        name = request.path_params["name"]
        self.calls.append(f"deleted {name}")
        return (
            self.answer() if self.nodes.pop(name, None) else self.answer(500, "Invalid node name")
        )

    async def update_job(self, request: Request) -> Response:
        """Take the one field of a job that the notifier writes."""
        number, body = int(request.path_params["job"]), await request.json()
        if body.keys() != {"admin_comment"} or not isinstance(body["admin_comment"], str):
            return self.answer(400, f"unknown fields {sorted(body)}")
        if number not in self.jobs:
            return self.answer(500, "Invalid job id specified")
        self.jobs[number]["admin_comment"] = body["admin_comment"]
        return self.answer()

    def delete_job(self, request: Request) -> Response:
        number, query = int(request.path_params["job"]), dict(request.query_params)
        allowed = {"signal", "flags"} if self.number >= FLAGS_SINCE else {"signal"}
        if unknown := query.keys() - allowed:
            return self.answer(400, f"unknown parameter {sorted(unknown)}")
        if query.get("flags", "BATCH_JOB") not in FLAG_WORDS.split():
            return self.answer(400, "unknown flag")
        if number not in self.jobs:
            return self.answer(500, "Invalid job id specified")
        self.calls.append(
            f"job {number} {query.get('signal', 'cancelled')} {query.get('flags', '')}"
        )
        if "signal" not in query:
            del self.jobs[number]
        return self.answer()

    def routes(self) -> list[Route]:
        table = (
            ("GET", "/nodes", self.list_nodes),
            ("GET", "/jobs", self.list_jobs),
            ("GET", "/ping", self.ping),
            ("POST", "/node/{name}", self.update),
            ("DELETE", "/node/{name}", self.delete_node),
            ("POST", "/job/{job}", self.update_job),
            ("DELETE", "/job/{job}", self.delete_job),
        )
        return [
            Route("/openapi/v3", self.guarded(self.description, always=True)),
            *(Route(self.base + path, self.guarded(do), methods=[way]) for way, path, do in table),
        ]

    def guarded(self, handle: Any, *, always: bool = False) -> Any:
        """Require a token, as `rest_auth/jwt` demands it."""

        async def answer(request: Request) -> Response:
            named = (
                request.headers.get("x-slurm-user-name"),
                request.headers.get("x-slurm-user-token"),
            )
            if named != (USER, TOKEN):
                return PlainTextResponse("Authentication failure", 401)
            if self.hangs_seconds and not always:
                await asyncio.sleep(self.hangs_seconds)
            if self.fails is not None and not always:
                return self.fails
            found = handle(request)
            return found if isinstance(found, Response) else await found

        return answer


@asynccontextmanager
async def strict_slurm(number: int) -> AsyncIterator[tuple[str, StrictSlurm]]:
    """Provide one version of the server, on a free port."""
    slurm = StrictSlurm(number)
    async with serving(Starlette(routes=slurm.routes())) as url:
        yield url, slurm
