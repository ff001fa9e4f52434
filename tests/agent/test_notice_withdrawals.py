"""Which notices take the node, and what is reported when the cloud announces one no more."""

import json
from typing import Any

import pytest

from agent.sources.cloud import azure_metadata
from agent.sources.cloud.notice_parsers import (
    aws_rebalance,
    aws_scheduled,
    aws_spot,
    gcp_maintenance,
    gcp_preempted,
)
from tests.agent.metadata_servers import Azure
from tests.agent.test_notice_watcher import CLOCK, INTERVAL_SECONDS, PREEMPT, SCHEDULED, watching

RETIREMENT = SCHEDULED | {"Code": "instance-retirement"}


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
    assert watched.notices[0].takes
    assert again.notices == []


TAKING = [
    (lambda: aws_spot(b'{"action": "terminate", "time": "2026-11-21T08:22:00Z"}')[0], True),
    (lambda: aws_spot(b'{"action": "stop", "time": "2026-11-21T08:22:00Z"}')[0], True),
    (lambda: aws_rebalance(b'{"noticeTime": "2026-11-21T08:22:00Z"}')[0], False),
    (lambda: aws_scheduled(json.dumps([SCHEDULED]).encode())[0], False),
    (lambda: aws_scheduled(json.dumps([RETIREMENT]).encode())[0], True),
    (lambda: gcp_preempted("TRUE", CLOCK.now())[0], True),
    (lambda: gcp_maintenance("MIGRATE_ON_HOST_MAINTENANCE", CLOCK.now())[0], False),
    (lambda: gcp_maintenance("TERMINATE_ON_HOST_MAINTENANCE", CLOCK.now())[0], True),
]


@pytest.mark.parametrize(("notice", "takes"), TAKING)
def test_a_notice_says_whether_the_node_is_taken(notice: Any, takes: bool) -> None:
    """What only moves or reboots the host, or may come to nothing, degrades and no more."""
    assert takes == notice().takes
