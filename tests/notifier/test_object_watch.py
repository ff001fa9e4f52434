"""A watch goes on where it ended, whatever ends it. The API is scripted."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from services.notifier.workload.kubernetes.cluster_state import ObjectWatch
from services.workload_systems.cluster_access import ClusterAccess
from services.workload_systems.kubernetes_client import (
    KubernetesClient,
    KubernetesError,
    MissingRightError,
)
from services.workload_systems.kubernetes_objects import KubernetesPod


class InstantClock:
    """Sleeps return at once."""

    def now(self) -> datetime:
        return datetime(2026, 11, 22, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        del seconds
        await asyncio.sleep(0)


def pod(name: str, version: int) -> dict[str, Any]:
    """A pod as the API returns it."""
    return {"metadata": {"name": name, "namespace": "ml", "resourceVersion": str(version)}}


def page(version: int, *names: str, more: str = "") -> bytes:
    """Return a page of a list."""
    items = [pod(each, version) for each in names] or None
    about = {"resourceVersion": str(version), "continue": more}
    return json.dumps({"metadata": about, "items": items}).encode()


def event(kind: str, what: dict[str, Any]) -> bytes:
    """Return a line of a watch."""
    return json.dumps({"type": kind, "object": what}).encode()


class ScriptedApi(KubernetesClient):
    """Answers lists and watches in the given order; at the end it falls silent."""

    def __init__(self, file: Path, script: Iterable[Any]) -> None:
        super().__init__(ClusterAccess(kubeconfig=str(file)), timeout_seconds=1)
        self.asked: list[str] = []
        self.over = asyncio.Event()
        self._script = list(script)

    async def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, **given: Any
    ) -> bytes:
        del method, path, given
        self.asked.append(f"list {(query or {}).get('continue', '')}".strip())
        answer = await self._next()
        assert isinstance(answer, bytes)
        return answer

    @asynccontextmanager
    async def lines(self, path: str, **query: str) -> AsyncIterator[AsyncIterator[bytes]]:
        del path
        assert query["allowWatchBookmarks"] == "true"
        self.asked.append(f"watch {query['resourceVersion']}")
        answer = await self._next()

        async def each_line() -> AsyncIterator[bytes]:
            for line in answer:
                if isinstance(line, Exception):
                    raise line
                yield line

        yield each_line()

    async def _next(self) -> Any:
        if not self._script:
            self.over.set()
            await asyncio.Event().wait()
        answer = self._script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


CUT = ConnectionError("cut")
GONE_AT_ONCE = KubernetesError("watch", 410, "Expired")
GONE = event("ERROR", {"code": 410, "message": "too old resource version"})
BOOKMARK = event("BOOKMARK", pod("", 9))
NO_RIGHT = MissingRightError("GET /api/v1/pods", 403, 'cannot watch resource "pods"')


@pytest.mark.parametrize(
    ("script", "asked", "left"),
    [
        ([page(5, "a"), []], ["list", "watch 5", "watch 5"], "a"),
        ([page(5, "a", more="x"), page(5, "b")], ["list", "list x", "watch 5"], "a b"),
        ([page(5, "a"), [event("ADDED", pod("b", 6)), CUT]], ["list", "watch 5", "watch 6"], "a b"),
        (
            [page(5, "a"), [event("DELETED", pod("a", 6))]],
            ["list", "watch 5", "watch 6"],
            "",
        ),
        ([page(5, "a"), [BOOKMARK, CUT]], ["list", "watch 5", "watch 9"], "a"),
        ([page(5, "a"), [GONE], page(8, "b")], ["list", "watch 5", "list", "watch 8"], "b"),
        (
            [page(5, "a"), KubernetesError("w", 410, "Expired"), page(8)],
            ["list", "watch 5", "list", "watch 8"],
            "",
        ),
        ([CUT, page(5, "a")], ["list", "list", "watch 5"], "a"),
        ([page(5, "a"), CUT, CUT], ["list", "watch 5", "watch 5", "watch 5"], "a"),
        (
            [page(5, "a"), NO_RIGHT, page(7, "b")],
            ["list", "watch 5", "list", "watch 7"],
            "b",
        ),
        ([page(5, "a"), [b"{", CUT]], ["list", "watch 5", "watch 5"], "a"),
    ],
)
async def test_a_watch_goes_on_where_it_ended(tmp_path, script, asked, left):
    """Resumed from the last version or bookmark; listed again where that is gone or refused."""
    (file := tmp_path / "kubeconfig").write_text("")
    api, known = ScriptedApi(file, script), set[str]()

    def changed(key: str, now: KubernetesPod | None) -> None:
        known.discard(key) if now is None else known.add(key)

    watch = ObjectWatch(api, "/api/v1/pods", KubernetesPod, InstantClock(), changed)
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(5):
        await api.over.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert api.asked == asked
    assert set(watch.objects) == known == {f"ml/{each}" for each in left.split()}


class NotingClock(InstantClock):
    """Notes the sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await super().sleep(seconds)


async def test_an_api_that_is_away_is_asked_less_and_less_often(tmp_path, caplog):
    """The time between two watches doubles up to a limit, with one warning; a line ends it."""
    (file := tmp_path / "kubeconfig").write_text("")
    script = [page(5, "a"), *[CUT] * 8, [event("ADDED", pod("b", 6))], GONE_AT_ONCE, page(7), CUT]
    api, clock = ScriptedApi(file, script), NotingClock()
    watch = ObjectWatch(api, "/api/v1/pods", KubernetesPod, clock, lambda *_: None)
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(5):
        await api.over.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert clock.slept == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 0.2, 0.4]
    warned = [each for each in caplog.records if "interrupted" in each.message]
    assert len(warned) == 2


async def test_what_prevents_the_first_list_is_raised(tmp_path):
    """A client that asks before anything is known learns why, and the watch goes on."""
    (file := tmp_path / "kubeconfig").write_text("")
    refused = MissingRightError("GET /api/v1/pods", 403, 'cannot list resource "pods"')
    api = ScriptedApi(file, [refused])
    watch = ObjectWatch(api, "/api/v1/pods", KubernetesPod, InstantClock(), lambda *_: None)
    task = asyncio.create_task(watch.run())
    with pytest.raises(MissingRightError, match="cannot list"):
        await watch.listed()
    task.cancel()
