"""Objects of one kind, kept in memory: a list, then a watch that goes on where the list ended.

A watch that ends is resumed from the last version that was seen, which bookmarks keep recent. Where
the server no longer has that version (410), everything is listed again.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from services.primitives.backoff import doubled
from services.primitives.clock import Clock
from services.workload_systems.kubernetes_client import KubernetesClient, KubernetesError
from services.workload_systems.kubernetes_objects import ObjectMetadata

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 300
"""The server ends a watch after this time; it is then resumed."""
BACKOFF_FIRST_SECONDS: Final = 0.2
BACKOFF_MAX_SECONDS: Final = 10.0
GONE: Final = 410


class _Object(Protocol):
    @property
    def metadata(self) -> ObjectMetadata: ...

    @property
    def key(self) -> str: ...


T = TypeVar("T", bound=_Object)


class _Change(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct, frozen=True):
    metadata: ObjectMetadata = ObjectMetadata()
    code: int = 0
    message: str = ""


_changes = msgspec.json.Decoder(_Change)
_versions = msgspec.json.Decoder(_Version)


class ObjectWatch(Generic[T]):
    """The objects of one kind; `run` keeps them current."""

    def __init__(
        self,
        client: KubernetesClient,
        path: str,
        kind: type[T],
        clock: Clock,
        on_change: Callable[[str, T | None], None],
        selector: str = "",
    ) -> None:
        """`on_change`: called with the key of each object and what it is now; None: it is gone."""
        self._client = client
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._clock = clock
        self._on_change = on_change
        self._query = {"fieldSelector": selector} if selector else {}
        self.objects: dict[str, T] = {}
        self._version = ""
        self._tried = asyncio.Event()
        self._listed = False
        self._problem: Exception | None = None

    async def listed(self) -> None:
        """Return when everything was listed once; raise what prevents it."""
        await self._tried.wait()
        if not self._listed:
            assert self._problem is not None
            raise self._problem

    async def run(self) -> None:
        """List and watch until cancelled."""
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._list()
                failures = 0
                await self._watch()
            except Exception as error:  # noqa: BLE001 - whatever it is, the watch goes on
                if isinstance(error, KubernetesError):
                    self._version = ""  # what it refuses to continue is listed again
                    if error.status == GONE:
                        continue
                failures += 1
                self._problem = error
                self._tried.set()
                if failures == 1:
                    log.warning(
                        "the watch of Kubernetes was interrupted; resuming",
                        extra={"path": self._path, "reason": str(error) or type(error).__name__},
                    )
                wait = doubled(BACKOFF_FIRST_SECONDS, failures, BACKOFF_MAX_SECONDS)
                await self._clock.sleep(wait)

    async def _list(self) -> None:
        found: dict[str, T] = {}
        version = ""
        async for page in self._client.pages(self._path, **self._query):
            for raw in page.items or ():
                each = self._decoder.decode(raw)
                found[each.key] = each
            version = page.metadata.resource_version
        gone = self.objects.keys() - found.keys()
        self.objects = found
        for key in gone:
            self._on_change(key, None)
        for key, each in found.items():
            self._on_change(key, each)
        self._version = version
        self._listed = True
        self._tried.set()

    async def _watch(self) -> None:
        query = {
            **self._query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        async with self._client.lines(self._path, **query) as lines:
            async for line in lines:
                change = _changes.decode(line)
                seen = _versions.decode(change.object)
                if change.type == "ERROR":
                    raise KubernetesError(f"watch {self._path}", seen.code, seen.message)
                if change.type != "BOOKMARK":
                    self._apply(change.type, self._decoder.decode(change.object))
                self._version = seen.metadata.resource_version

    def _apply(self, change: str, what: Any) -> None:
        if change == "DELETED":
            self.objects.pop(what.key, None)
            self._on_change(what.key, None)
        else:
            self.objects[what.key] = what
            self._on_change(what.key, what)
