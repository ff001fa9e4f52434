"""Notices of a queue to which EventBridge sends events of EC2 and AWS Health.

A spot interruption and a change of state name what happens to their instance. A health event says
that EC2's scheduled events have changed, which are then asked for: these are withdrawn, too.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from services.provisioner.provider_client.provider import QueuedNotice, ScheduledEvent
from services.provisioner.providers.aws_clients import AwsClients

log = logging.getLogger(__name__)

MESSAGES_MAX: Final = 10
"""Of one answer, as SQS limits it."""
WAIT_SECONDS: Final = 1
"""With a wait SQS asks all of its servers."""
INTERRUPTION: Final = "EC2 Spot Instance Interruption Warning"
STATE_CHANGE: Final = "EC2 Instance State-change Notification"
HEALTH: Final = "AWS Health Event"
SPOT_WARNING: Final = timedelta(minutes=2)
"""How long before it takes an instance EC2 announces it."""
ENDS: Final = frozenset({"stopping", "stopped", "shutting-down", "terminated"})


class _Detail(msgspec.Struct, frozen=True, rename="kebab"):
    instance_id: str = ""
    instance_action: str = ""
    state: str = ""
    service: str = ""


class _Event(msgspec.Struct, frozen=True, rename="kebab"):
    id: str
    detail_type: str
    time: datetime
    detail: _Detail


class AwsNotices:
    """Reads one queue."""

    def __init__(self, clients: AwsClients, queue: str) -> None:
        self._clients = clients
        self._queue = queue

    async def read(self) -> Sequence[QueuedNotice]:
        """Some of the messages; they are hidden from others until they are deleted, or a while."""
        answer = await self._clients.call(
            *("sqs", "receive_message"),
            QueueUrl=self._queue,
            MaxNumberOfMessages=MESSAGES_MAX,
            WaitTimeSeconds=WAIT_SECONDS,
        )
        return [queued_notice(each) for each in answer.get("Messages", ())]

    async def delete(self, receipts: Sequence[str]) -> None:
        """Remove messages; one that cannot be removed comes again."""
        entries = [
            {"Id": str(number), "ReceiptHandle": each} for number, each in enumerate(receipts)
        ]
        await self._clients.call(
            "sqs", "delete_message_batch", QueueUrl=self._queue, Entries=entries
        )


def queued_notice(message: Any) -> QueuedNotice:
    """Read a message; of another kind or form it says nothing. Pure."""
    receipt = str(message["ReceiptHandle"])
    try:
        event = msgspec.json.decode(message.get("Body", ""), type=_Event)
    except msgspec.DecodeError as error:
        log.warning("a message of the queue is no event", extra={"reason": str(error)})
        return QueuedNotice(receipt=receipt)
    detail, name = event.detail, event.detail.instance_id
    if event.time.tzinfo is None:
        return QueuedNotice(receipt=receipt)
    if event.detail_type == INTERRUPTION and name:
        action, at = detail.instance_action, event.time + SPOT_WARNING
        text = f"AWS takes the spot instance back: {action} at {at:%Y-%m-%d %H:%M:%S} UTC"
    elif event.detail_type == STATE_CHANGE and name and detail.state in ENDS:
        action, at = detail.state, event.time
        text = f"EC2 reports the instance {detail.state}"
    else:
        polled = event.detail_type == HEALTH and detail.service == "EC2"
        return QueuedNotice(receipt=receipt, at=event.time, changes_reports=polled)
    found = ScheduledEvent(
        provider_id=name, event=event.id, action=action, text=text, effect="reclaim", starts_at=at
    )
    return QueuedNotice(receipt=receipt, at=event.time, event=found)
