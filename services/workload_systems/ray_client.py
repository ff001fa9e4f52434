"""Calls of Ray's dashboard, which serves the State API and the Jobs API over HTTP."""

import asyncio
from typing import Any, Final, TypeVar

import httpx
import msgspec

from services.primitives.clock import Clock
from services.runtime.http_caller import HttpCaller, RefusedHttpError, place
from services.saga.participant import StepFailure
from services.workload_systems.ray_answers import (
    RayActor,
    RayDemand,
    RayJob,
    Raylet,
    RayTask,
    RunningState,
    StateAnswer,
    StatusAnswer,
)

LIST_MAX: Final = 10_000
"""Entries of one list: Ray's own limit."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
SETTING: Final = "dashboard"
DENIED: Final = (401, 403)
NOT_FOUND: Final = 404

T = TypeVar("T")


class RayUnavailableError(Exception):
    """Ray does not answer, or not in a way that can be used; it is asked again."""


class _Version(msgspec.Struct, frozen=True):
    ray_version: str


class _Submitted(msgspec.Struct, frozen=True):
    submission_id: str


class _Logs(msgspec.Struct, frozen=True):
    logs: str | None = None


class RayClient:
    """Calls one Ray dashboard."""

    def __init__(
        self, dashboard: str, headers: dict[str, str], timeout_seconds: float, clock: Clock
    ) -> None:
        """Connect at the first call."""
        self._base = dashboard.rstrip("/")
        self._http = HttpCaller(
            clock,
            timeout_seconds=timeout_seconds,
            headers=headers,
            answer_bytes_max=ANSWER_BYTES_MAX,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def version(self) -> str:
        """Return the cluster's version of Ray."""
        return (await self._call("GET", "/api/version", _Version)).ray_version

    async def raylets(self) -> tuple[Raylet, ...]:
        """Return every raylet, and the last dead ones."""
        return await self._list("nodes", Raylet, detail="1")

    async def running(self) -> RunningState:
        """Actors and tasks that have a raylet, and the jobs."""
        actors, tasks, jobs = await asyncio.gather(
            self._list("actors", RayActor, _filter("state", "!=", "DEAD")),
            self._list("tasks", RayTask, _filter("state", "=", "RUNNING")),
            self._call("GET", "/api/jobs/", tuple[RayJob, ...]),
        )
        return RunningState(actors, tasks, jobs)

    async def demand(self) -> RayDemand:
        """Return what waits for resources in the whole cluster."""
        answer = await self._call("GET", "/api/cluster_status", StatusAnswer)
        if answer.data.cluster_status is None:
            raise RayUnavailableError("Ray's head has not written its status yet")
        return answer.data.cluster_status.load_metrics_report

    async def submit(self, submission: str, entrypoint: str) -> None:
        """Run a command as a job; it runs on the head."""
        body = {
            "entrypoint": entrypoint,
            "submission_id": submission,
            "metadata": {"user": "navarch"},
        }
        await self._call("POST", "/api/jobs/", _Submitted, body=body)

    async def job(self, submission: str) -> RayJob:
        """Return one job."""
        return await self._call("GET", f"/api/jobs/{submission}", RayJob)

    async def output(self, submission: str) -> str:
        """Return what a job has printed."""
        return (await self._call("GET", f"/api/jobs/{submission}/logs", _Logs)).logs or ""

    async def stop(self, submission: str) -> None:
        """End a job that still runs."""
        await self._call("POST", f"/api/jobs/{submission}/stop", dict[str, Any])

    async def forget(self, submission: str) -> None:
        """Remove a job that has ended from Ray's list."""
        await self._call("DELETE", f"/api/jobs/{submission}", dict[str, Any])

    async def _list(
        self, what: str, kind: type[T], wanted: dict[str, str] | None = None, **query: str
    ) -> tuple[T, ...]:
        query |= {"limit": str(LIST_MAX), **(wanted or {})}
        answer = await self._call("GET", f"/api/v0/{what}", StateAnswer[kind], query)  # type: ignore[valid-type]
        try:
            return answer.items()
        except ValueError as error:
            raise RayUnavailableError(f"Ray's list of {what} cannot be used: {error}") from error

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[T],
        query: dict[str, str] | None = None,
        *,
        body: Any = None,
    ) -> T:
        url = httpx.URL(f"{self._base}{path}").copy_merge_params(query or {})
        request = self._http.request(method, url, json=body)
        try:
            answer = await self._http.send(request, SETTING)
        except RefusedHttpError as error:
            if error.answer.status_code in DENIED:
                remedy = "set `headers: {Authorization: Bearer TOKEN}` with Ray's token"
            elif error.answer.status_code == NOT_FOUND:
                remedy = "`dashboard` must be the URL of Ray's dashboard, port 8265 by default"
            else:
                remedy = "see dashboard.log on Ray's head"
            raise StepFailure(f"Ray refuses: {error}", "INVALID", remedy) from error
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            where = place(SETTING, request)
            raise RayUnavailableError(f"{where}: not an answer of Ray: {error}") from error


def _filter(key: str, predicate: str, value: str) -> dict[str, str]:
    return {"filter_keys": key, "filter_predicates": predicate, "filter_values": value}
