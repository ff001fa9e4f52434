"""Spot and maintenance notices, asked of servers that speak the clouds' protocols strictly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.observations import Notice
from agent.settings import AgentConfig
from agent.sources.cloud import aws_metadata, azure_metadata, gcp_metadata
from agent.sources.cloud.cloud_detection import AZURE_ASSET_TAG, detect, notice_sources
from agent.sources.cloud.metadata_http import BODY_BYTES_MAX, MetadataUnavailable, fetch
from agent.sources.cloud.notice_parsers import UnreadableNotice, azure_events, moment, read
from agent.sources.cloud.notice_watcher import NoticeSource, NoticeWatcher
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.primitives.clock import SystemClock
from tests.agent.conftest import AgentHost, contents, events
from tests.agent.metadata_servers import Aws, Azure, Gcp, Raw

CLOCK = SystemClock()
INTERVAL_SECONDS = 0.02
SPOT = {"action": "terminate", "time": "2026-11-21T08:22:00Z"}
SCHEDULED = {
    "NotBefore": "21 Jan 2027 09:00:43 GMT",
    "Code": "system-reboot",
    "Description": "scheduled reboot",
    "EventId": "instance-event-0d59937288b749b32",
    "NotAfter": "21 Jan 2027 09:17:23 GMT",
    "State": "active",
}
PREEMPT = {
    "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["gpu-pool_3", "GPU-pool_7"],
    "EventStatus": "Scheduled",
    "NotBefore": "Mon, 21 Nov 2026 18:29:47 GMT",
    "Description": "",
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}


class WatcherRun:
    """A running watch, and what it reported."""

    def __init__(self, notice_sources: list[NoticeSource], published: tuple[str, ...] = ()) -> None:
        self.notices: list[Notice] = []
        self._came = asyncio.Event()
        self.over: list[str] = []
        self.watch = NoticeWatcher(
            notice_sources, CLOCK, published=published, on_notice=self._notice, on_over=self._ended
        )

    def _ended(self, digest: str) -> None:
        self.over.append(digest)
        self._came.set()

    def _notice(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._came.set()

    async def have(self, count: int) -> list[tuple[str, str]]:
        """Wait for so many notices in all; give kinds and subcodes."""
        async with asyncio.timeout(60):
            while len(self.notices) < count:
                self._came.clear()
                await self._came.wait()
        return [(each.kind, each.subcode) for each in self.notices]

    async def ended(self, count: int) -> list[str]:
        """Wait until so many are announced no more; give their digests."""
        async with asyncio.timeout(60):
            while len(self.over) < count:
                self._came.clear()
                await self._came.wait()
        return self.over


@asynccontextmanager
async def watching(
    notice_sources: Any, published: tuple[str, ...] = ()
) -> AsyncIterator[WatcherRun]:
    """Run a watch for a while."""
    watched = WatcherRun(list(notice_sources), published)
    task = asyncio.create_task(watched.watch.run())
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_aws_reports_spot_rebalance_and_schedule(serve):
    """404 is no notice; each notice is published once, with its deadline; reads share a token."""
    server = await serve(Aws)
    async with watching(aws_metadata.notice_sources(server.url, INTERVAL_SECONDS)) as watched:
        for path in ("instance-action", "rebalance", "scheduled"):
            await server.was_asked(path, 2)
        assert watched.notices == []
        server.items["events/maintenance/scheduled"] = [
            SCHEDULED,
            SCHEDULED | {"EventId": "e2", "State": "completed"},
            SCHEDULED | {"EventId": "e3", "Description": "[Canceled] scheduled reboot"},
        ]
        assert await watched.have(1) == [("maintenance", "system-reboot")]
        server.items["events/recommendations/rebalance"] = {"noticeTime": "2026-11-21T08:20:00Z"}
        assert (await watched.have(2))[1:] == [("maintenance", "rebalance")]
        server.items["spot/instance-action"] = SPOT
        assert (await watched.have(3))[2:] == [("preemption", "terminate")]
        await server.was_asked("instance-action", 20)
    deadlines = [each.deadline for each in watched.notices]
    assert deadlines == [
        datetime(2027, 1, 21, 9, 0, 43, tzinfo=UTC),
        None,
        datetime(2026, 11, 21, 8, 22, tzinfo=UTC),
    ]
    assert len(watched.notices) == 3
    assert (server.asked.count("PUT /latest/api/token"), server.refused) == (1, 0)


async def test_an_aws_token_that_ran_out_is_renewed(serve):
    """A refused token costs one more request, and no notice."""
    server = await serve(Aws)
    async with watching(aws_metadata.notice_sources(server.url, INTERVAL_SECONDS)[:1]) as watched:
        await server.was_asked("instance-action", 2)
        server.expire()
        server.items["spot/instance-action"] = SPOT
        assert await watched.have(1) == [("preemption", "terminate")]
    assert server.asked.count("PUT /latest/api/token") == 2


async def test_gcp_reports_at_the_change_without_another_poll(serve):
    """A long poll hangs until the value changes, and its answer is reported; NONE ends an event."""
    server = await serve(Gcp)
    async with watching(gcp_metadata.notice_sources(server.url, CLOCK)) as watched:
        async with asyncio.timeout(60):
            for _ in range(2):
                await server.waiting.acquire()
        count = len(server.asked)
        server.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        assert await watched.have(1) == [("maintenance", "terminate")]
        assert count == 4
        server.set("maintenance-event", "NONE")
        server.set("preempted", "TRUE")
        assert (await watched.have(2))[1:] == [("preemption", "preempted")]
        server.set("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
        await watched.have(3)
    assert watched.notices[2].subcode == "migrate_on_host_maintenance"
    left = [(each.deadline - CLOCK.now()).total_seconds() for each in watched.notices]
    assert [round(each, -1) for each in left] == [3600, 30, 60]
    assert server.refused == 0


async def test_azure_reports_only_this_vm(serve):
    """Events of other VMs and finished ones are left out; others are published once."""
    server = await serve(Azure)
    async with watching(azure_metadata.notice_sources(server.url, INTERVAL_SECONDS)) as watched:
        await server.was_asked("scheduledevents", 2)
        server.events = [
            PREEMPT | {"EventId": "other", "Resources": ["gpu-pool_3"]},
            PREEMPT | {"EventId": "old", "EventStatus": "Completed"},
            PREEMPT | {"EventId": "a", "EventType": "Freeze", "DurationInSeconds": 9},
            PREEMPT | {"EventId": "b", "EventType": "Terminate", "EventSource": "User"},
            PREEMPT,
        ]
        expected = [("maintenance", "freeze"), ("maintenance", "terminate")]
        assert await watched.have(3) == [*expected, ("preemption", "preempt")]
        server.events = [PREEMPT | {"EventStatus": "Started", "NotBefore": ""}]
        await server.was_asked("scheduledevents", len(server.asked) + 3)
    assert len(watched.notices) == 3
    assert watched.notices[2].deadline == datetime(2026, 11, 21, 18, 29, 47, tzinfo=UTC)
    assert watched.notices[0].metrics["duration_seconds"] == 9
    assert (server.asked.count("GET /metadata/instance/compute/name"), server.refused) == (1, 0)


async def test_what_an_earlier_run_published_is_not_published_again(serve):
    """A notice that is still current after a restart is old; one that returns is new."""
    server = await serve(Azure)
    server.events = [PREEMPT]
    async with watching(azure_metadata.notice_sources(server.url, INTERVAL_SECONDS)) as first:
        await first.have(1)
        announced = first.watch.announced
    async with watching(
        azure_metadata.notice_sources(server.url, INTERVAL_SECONDS), announced
    ) as second:
        assert second.watch.announced == announced
        await server.was_asked("scheduledevents", len(server.asked) + 3)
        assert second.notices == []
        server.events = []
        await server.was_asked("scheduledevents", len(server.asked) + 3)
        assert second.watch.announced == ()
        server.events = [PREEMPT]
        await second.have(1)


async def test_a_service_that_is_away_is_an_error_in_words(serve):
    """Nonsense, errors and a closed port are each said in words that name the cause."""
    server = await serve(Raw)
    look = azure_metadata.notice_sources(server.url, INTERVAL_SECONDS)[0]
    server.bytes = b"SSH-2.0-OpenSSH\r\n\r\n"
    with pytest.raises(MetadataUnavailable, match=r"not an HTTP/1\.1 answer"):
        await look.poll()
    server.bytes = b"HTTP/1.1 503 x\r\n\r\n"
    with pytest.raises(MetadataUnavailable, match="status 503"):
        await look.poll()
    server.bytes = b"HTTP/1.1 200 x\r\n\r\n[]"
    with pytest.raises(UnreadableNotice):
        await look.poll()
    await server.stop()
    with pytest.raises(MetadataUnavailable, match=r"Connect|refused"):
        await look.poll()


class Flaky:
    """A look that fails a few times before it answers."""

    name = "flaky"
    interval_seconds = 0.0

    def __init__(self) -> None:
        self.failures = 3

    async def poll(self) -> list[Notice]:
        if self.failures:
            self.failures -= 1
            raise MetadataUnavailable("away")
        return [Notice("maintenance", "key", "reboot", "text")]


class Hurried(SystemClock):
    """A clock that does not wait."""

    async def sleep(self, seconds: float) -> None:
        _ = seconds
        await asyncio.sleep(0)


async def test_a_service_is_asked_until_it_is_back(caplog: pytest.LogCaptureFixture):
    """The service's absence is logged once, and its notices come when it answers."""
    came = asyncio.Event()
    watch = NoticeWatcher(
        [Flaky()], Hurried(), published=(), on_notice=lambda _: came.set(), on_over=print
    )
    with caplog.at_level("INFO"):
        task = asyncio.create_task(watch.run())
        async with asyncio.timeout(60):
            await came.wait()
        task.cancel()
        await asyncio.wait({task})
    assert [record.message for record in caplog.records] == ["flaky: away", "flaky answers again"]


BODIES = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi more", (200, b"hi")),
    (b"HTTP/1.0 404 Not Found\r\n\r\nto the end", (404, b"to the end")),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1;x=y\r\n!\r\n0\r\n\r\n",
        (200, b"hi!"),
    ),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", None),
    (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nhi", None),
    (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhi", None),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n", None),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", None),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", None),
    (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (BODY_BYTES_MAX + 1), None),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", None),
    (b"HTTP/2 200\r\n\r\n", None),
    (b"HTTP/1.1 abc\r\n\r\n", None),
    (b"HTTP/1.1 200", None),
    (b"", None),
]


@pytest.mark.parametrize(("answer", "expected"), BODIES, ids=[str(b[0][:60]) for b in BODIES])
async def test_answers_are_read_within_bounds(
    serve, answer: bytes, expected: tuple[int, bytes] | None
):
    """Lengths, chunks and the end of the connection delimit a body; anything else is an error."""
    server = await serve(Raw)
    server.bytes = answer
    if expected is None:
        with pytest.raises(MetadataUnavailable):
            await fetch(server.url, headers={}, seconds=5)
        return
    found = await fetch(server.url + "/x?y=1", headers={"A": "b"}, seconds=5)
    assert (found.status, found.body) == expected


@pytest.mark.parametrize("url", ["https://127.0.0.1", "http://", "ftp://x", "nonsense"])
async def test_other_addresses_are_refused(url: str):
    """Only plain HTTP is spoken."""
    with pytest.raises(MetadataUnavailable):
        await fetch(url, headers={}, seconds=1)


async def test_a_silent_service_costs_its_deadline_and_no_more(serve):
    """A connection that is accepted and never answered ends when the time is up."""
    server = await serve(Azure)
    server.silent = True
    with pytest.raises(MetadataUnavailable, match=r"no answer in 0\.1 s"):
        await fetch(server.url, headers={}, seconds=0.1)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"Events": 1}', b"[" * 100_000])
def test_what_cannot_be_read_is_said_so(body: bytes):
    """A broken document is an error of the service, and no notice."""
    with pytest.raises(UnreadableNotice):
        read(body, lambda body: azure_events(body, "x"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21T08:22:00Z", datetime(2026, 11, 21, 8, 22, tzinfo=UTC)),
        ("21 Jan 2027 09:00:43 GMT", datetime(2027, 1, 21, 9, 0, 43, tzinfo=UTC)),
        ("Mon, 19 Sep 2026 18:29:47 GMT", datetime(2026, 9, 19, 18, 29, 47, tzinfo=UTC)),
        ("2026-11-21", None),
        ("", None),
        ("soon", None),
    ],
)
def test_moments_are_read_in_both_forms(text: str, expected: datetime | None):
    """RFC 3339 and HTTP dates with a zone; nothing is guessed."""
    assert moment(text) == expected


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("sys_vendor", "Amazon EC2\n", "aws"),
        ("product_name", "Google Compute Engine\n", "gcp"),
        ("chassis_asset_tag", f"{AZURE_ASSET_TAG}\n", "azure"),
        ("sys_vendor", "Microsoft Corporation\n", ""),
        ("sys_vendor", "Supermicro\n", ""),
    ],
)
def test_the_firmware_says_which_cloud_it_is(
    tmp_path: Path, file: str, content: str, expected: str
):
    """The machine's own name decides where nothing is configured; elsewhere nothing is asked."""
    (tmp_path / file).write_text(content)
    assert detect(tmp_path) == expected
    config = AgentConfig(pool="p", node="n")
    assert bool(notice_sources(config, CLOCK, tmp_path)) == bool(expected)


@pytest.mark.parametrize(("cloud", "expected"), [("none", 0), ("aws", 3), ("gcp", 2), ("azure", 1)])
def test_the_configuration_wins(tmp_path: Path, cloud: Any, expected: int):
    """NAVARCH_CLOUD decides, whatever the firmware says."""
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    config = AgentConfig(pool="p", node="n", cloud=cloud)
    assert len(notice_sources(config, CLOCK, tmp_path)) == expected


async def test_an_agent_publishes_a_spot_notice(serve, host: AgentHost, bus: NatsBus):
    """The notice is a fault with its deadline, and is kept over a restart without a second one."""
    server = await serve(Aws)
    server.items["spot/instance-action"] = SPOT
    cloud = {
        "NAVARCH_CLOUD": "aws",
        "NAVARCH_CLOUD_METADATA_URL": server.url,
        "NAVARCH_CLOUD_INTERVAL": "50ms",
    }
    await host.start(**cloud)
    fault = _fault(await events(bus, host.node, 4))
    assert (fault["kind"], fault["subcode"], fault["source"]) == (
        "preemption",
        "terminate",
        "cloud",
    )
    assert fault["metrics"]["deadline"] == "2026-11-21T08:22:00Z"
    assert fault["metrics"].keys() == {"action", "deadline", "seconds_left"}
    assert await host.stop() == 0
    server.items["events/maintenance/scheduled"] = [SCHEDULED]
    await host.start(**cloud)
    found = [each for each in contents(await events(bus, host.node, 7)) if "fault" in each["type"]]
    assert [each["kind"] for each in found] == ["preemption", "maintenance"]


def _fault(stored: list[Stored]) -> dict[str, Any]:
    (found,) = (each for each in contents(stored) if "fault" in each["type"])
    return found
