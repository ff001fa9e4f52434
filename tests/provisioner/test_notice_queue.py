"""Messages of an SQS queue become notices of nodes, and are deleted once those are stored."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import aioboto3
import msgspec
import pytest

from schemas.messages import encode
from schemas.node_events import ProviderNotice, node_codec
from schemas.node_records import CloudNotice, NodeRecord
from schemas.subjects import node_event_wildcard
from schemas.topology import EVENTS, NODES
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.host_reports.report_poller import NoticeQueueReader
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.aws_notices import queued_notice
from tests.provisioner.provisioner_parts import providers, provision, steps

WARNING = "EC2 Spot Instance Interruption Warning"
STATE = "EC2 Instance State-change Notification"
HEALTH = "AWS Health Event"
AT = datetime(2026, 5, 5, 12, tzinfo=UTC)


def event(kind: str, at: datetime, **detail: str) -> str:
    """An event as EventBridge sends it."""
    named = {key.replace("_", "-"): value for key, value in detail.items()}
    return json.dumps(
        {
            "version": "0",
            "id": "7bf73129-1428-4cd3-a780-95db273d1602",
            "detail-type": kind,
            "source": "aws.health" if kind == HEALTH else "aws.ec2",
            "account": "123456789012",
            "time": f"{at:%Y-%m-%dT%H:%M:%SZ}",
            "region": "us-east-1",
            "resources": [],
            "detail": named,
        }
    )


@pytest.mark.parametrize(
    ("body", "action", "seconds", "polls"),
    [
        (
            event(WARNING, AT, instance_id="i-1", instance_action="terminate"),
            "terminate",
            120,
            False,
        ),
        (event(STATE, AT, instance_id="i-1", state="shutting-down"), "shutting-down", 0, False),
        (event(STATE, AT, instance_id="i-1", state="running"), "", 0, False),
        (event(STATE, AT, state="stopping"), "", 0, False),
        (event(HEALTH, AT, service="EC2"), "", 0, True),
        (event(HEALTH, AT, service="RDS"), "", 0, False),
        (event("EC2 Instance Rebalance Recommendation", AT, instance_id="i-1"), "", 0, False),
        ("{", "", 0, False),
        ("[]", "", 0, False),
        ("{}", "", 0, False),
        (event(STATE, AT, instance_id="i-1", state="stopped").replace("Z", ""), "", 0, False),
    ],
)
def test_what_each_event_says(body: str, action: str, seconds: int, polls: bool) -> None:
    """A message that is unreadable, or no event of an instance's end, gives no event."""
    found = queued_notice({"ReceiptHandle": "r", "Body": body})
    assert ("r", polls) == (found.receipt, found.changes_reports)
    assert (action != "") == (found.event is not None)
    if found.event is not None:
        assert (action, "reclaim", "i-1") == (
            *(found.event.action, found.event.effect, found.event.provider_id),
        )
        assert AT + timedelta(seconds=seconds) == found.event.starts_at


class Queue:
    """A queue at moto, its reader, and what is published."""

    def __init__(self, client: Any, url: str, bus: NatsBus, provider: AwsProvider) -> None:
        self._client = client
        self.url = url
        self.bus = bus
        self.provider = provider
        self.polls = 0
        self.reader = NoticeQueueReader(
            bus, SystemClock(), InstanceStore(bus), providers(provider), self._poll
        )

    async def _poll(self) -> None:
        self.polls += 1

    async def send(self, *bodies: str) -> None:
        """Put messages into it."""
        for body in bodies:
            await self._client.send_message(QueueUrl=self.url, MessageBody=body)

    async def left(self) -> int:
        """Return how many messages were not deleted, hidden ones included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = await self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(found["Attributes"][each]) for each in names)

    async def notices(self) -> list[ProviderNotice]:
        """Return the notices that were published."""
        stored = await self.bus.read(EVENTS.name, node_event_wildcard("provider-notice"))
        found = [node_codec.decode(each.data) for each in stored]
        return [each for each in found if isinstance(each, ProviderNotice)]


@pytest.fixture
async def queue(
    bus: NatsBus, moto: str, make_aws: Callable[..., AwsProvider]
) -> AsyncIterator[Queue]:
    """Yield a queue without messages."""
    make_aws()  # its account is empty then
    session = aioboto3.Session(region_name="us-east-1")
    async with session.client("sqs", endpoint_url=moto) as client:
        made = await client.create_queue(QueueName="navarch")
        url = made["QueueUrl"]
        yield Queue(client, url, bus, make_aws(notice_queue=url))


async def test_an_interruption_is_a_notice_once_and_then_deleted(queue: Queue) -> None:
    """An interruption is one notice, also where it is delivered twice, and is then deleted.

    Other instances and old events leave no notice.
    """
    made = await steps(queue.bus, queue.provider).provision(
        provision("web-1", instance_type="p4d.24xlarge")
    )
    now = datetime.now(UTC).replace(microsecond=0)
    about = {"instance_id": made.provider_id, "instance_action": "terminate"}
    warning = event(WARNING, now, **about)
    await queue.send(warning)
    await queue.reader.read()
    assert ([], 1) == (await queue.notices(), await queue.left())  # it has no node yet

    await queue.bus.put(NODES, "web.web-1", encode(NODE))
    await queue.send(
        *(warning, warning),
        event(WARNING, now - timedelta(hours=1), **about),
        event(STATE, now, instance_id="i-other", state="terminated"),
        event(HEALTH, now, service="EC2"),
        "nonsense",
    )
    await queue.reader.read()
    [notice] = await queue.notices()
    assert ("preemption", "reclaim", "terminate", "b1") == (
        *(notice.kind, notice.effect, notice.action, notice.boot_id),
    )
    assert now + timedelta(minutes=2) == notice.deadline
    assert (1, 1) == (await queue.left(), queue.polls)


NODE = NodeRecord(pool="web", node="web-1", state="active", boot_id="b1")


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "leaving"},
        {"notices": {"n": CloudNotice(kind="preemption", action="stopping", at=AT)}},
    ],
)
async def test_what_is_known_or_ordered_is_no_notice(queue: Queue, changes: dict[str, Any]) -> None:
    """The node leaves, or its agent has announced the same."""
    made = await steps(queue.bus, queue.provider).provision(
        provision("web-1", instance_type="p4d.24xlarge")
    )
    now = datetime.now(UTC).replace(microsecond=0)
    for notice in changes.get("notices", {}).values():
        changes = {"notices": {"n": msgspec.structs.replace(notice, deadline=now)}}
    node = msgspec.structs.replace(NODE, **changes)
    await queue.bus.put(NODES, "web.web-1", encode(node))
    await queue.send(event(STATE, now, instance_id=made.provider_id, state="stopping"))
    await queue.reader.read()
    assert ([], 0) == (await queue.notices(), await queue.left())


async def test_a_queue_that_is_not_there_ends_nothing(queue: Queue) -> None:
    """A missing queue is logged, and read again."""
    missing = type(queue)(None, "", queue.bus, queue.provider)
    queue.provider._notices._queue = f"{queue.url}-gone"
    await missing.reader.read()
    assert [] == await queue.notices()
