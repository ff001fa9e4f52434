"""Notices of some kinds take the node; what a cloud announces no more is reported as over."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from agent.fault_reporter import FaultReporter, ReporterInputs
from agent.faults.fault_builder import GpuMap, NodeIdentity
from agent.sources.cloud import azure_metadata
from agent.sources.cloud.notice_parsers import (
    aws_rebalance,
    aws_scheduled,
    aws_spot,
    azure_events,
    gcp_maintenance,
    gcp_preempted,
)
from tests.agent.metadata_servers import Azure
from tests.agent.test_notice_watcher import CLOCK, INTERVAL_SECONDS, PREEMPT, SCHEDULED, watching


async def test_what_is_announced_no_more_is_reported_by_its_digest(serve):
    """Azure withdraws an eviction, which may have been published by an earlier run."""
    server = await serve(Azure)
    server.events = [PREEMPT]
    async with watching(azure_metadata.notice_sources(server.url, INTERVAL_SECONDS)) as watched:
        await watched.have(1)
        server.events = []
        [digest] = await watched.ended(1)
    async with watching(
        azure_metadata.notice_sources(server.url, INTERVAL_SECONDS), (digest,)
    ) as again:
        assert await again.ended(1) == [digest]
    assert digest == watched.notices[0].digest
    assert watched.notices[0].effect == "reclaim"
    assert again.notices == []


def _scheduled(code: str) -> Any:
    return aws_scheduled(json.dumps([{**SCHEDULED, "Code": code}]).encode())[0]


def _azure(kind: str, **changes: Any) -> Any:
    return azure_events(
        json.dumps({"Events": [{**PREEMPT, "EventType": kind, **changes}]}).encode(), "gpu-pool_3"
    )[0]


EFFECTS = [
    (lambda: aws_spot(b'{"action": "terminate", "time": "2026-11-21T08:22:00Z"}')[0], "reclaim"),
    (lambda: aws_spot(b'{"action": "stop", "time": "2026-11-21T08:22:00Z"}')[0], "reclaim"),
    (lambda: aws_rebalance(b'{"noticeTime": "2026-11-21T08:22:00Z"}')[0], None),
    (lambda: _scheduled("instance-retirement"), "retire"),
    (lambda: _scheduled("instance-stop"), "retire"),
    (lambda: _scheduled("instance-reboot"), "reboot"),
    (lambda: _scheduled("system-reboot"), "reboot"),
    (lambda: _scheduled("system-maintenance"), "reboot"),
    (lambda: gcp_preempted("TRUE", CLOCK.now())[0], "reclaim"),
    (lambda: gcp_maintenance("MIGRATE_ON_HOST_MAINTENANCE", CLOCK.now())[0], "freeze"),
    (lambda: gcp_maintenance("TERMINATE_ON_HOST_MAINTENANCE", CLOCK.now())[0], "reclaim"),
    (lambda: _azure("Preempt"), "reclaim"),
    (lambda: _azure("Terminate", EventSource="Platform"), "reclaim"),
    (lambda: _azure("Terminate", EventSource="User"), None),
    (lambda: _azure("Reboot"), "reboot"),
    (lambda: _azure("Redeploy"), "redeploy"),
    (lambda: _azure("Freeze"), "freeze"),
]
UNKNOWN = [
    lambda: _scheduled("system-levitation"),
    lambda: gcp_maintenance("LEVITATE", CLOCK.now())[0],
    lambda: _azure("Levitate"),
]


@pytest.mark.parametrize(("notice", "effect"), EFFECTS)
def test_each_term_of_a_cloud_has_an_effect(notice: Any, effect: str | None) -> None:
    """A term that is only advice, or the account's own doing, has no effect."""
    assert (notice().effect, notice().unknown) == (effect, False)


@pytest.mark.parametrize("notice", UNKNOWN)
def test_an_unknown_term_only_degrades_the_node_and_is_logged(
    notice: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A cloud may announce a new one to a whole fleet, which must not be drained for it."""
    sent: list[Any] = []
    outbox: Any = SimpleNamespace(put=sent.append, take_dropped=lambda: 0)
    gpus = GpuMap(())
    inputs = ReporterInputs(gpus=lambda: gpus, lines=lambda: True, job=lambda *_: "")
    FaultReporter(NodeIdentity("p", "n", "b"), outbox, CLOCK, inputs).notice(notice())
    assert notice().effect is None
    assert "levitat" in caplog.text.lower()
    assert "a term that this version does not know" in caplog.text
    assert len(sent) == 1, "the fault alone, and no notice"


def test_a_pause_is_over_when_the_cloud_says() -> None:
    """Azure names how long, AWS the end."""
    pause = _azure("Freeze", NotBefore="Mon, 21 Nov 2026 09:00:00 GMT", DurationInSeconds=5)
    assert pause.window_end == datetime(2026, 11, 21, 9, 0, 5, tzinfo=UTC)
    endless = _azure("Freeze", NotBefore="Mon, 21 Nov 2026 09:00:00 GMT", DurationInSeconds=10**18)
    assert endless.window_end == datetime(2026, 11, 22, 9, tzinfo=UTC)
    assert _azure("Freeze", NotBefore="", DurationInSeconds=-1).window_end is None
