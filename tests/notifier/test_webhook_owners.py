"""A webhook's receiver hears of a drain that will end work, where it wants to."""

from datetime import UTC, datetime

import msgspec
import pytest

from services.notifier.workload.webhook_notifier import WebhookNotifier
from tests.notifier.test_webhook import FixedClock, order


@pytest.mark.parametrize("configured", [True, False])
async def test_owners_hear_by_an_order_of_its_own(receiver, *, configured):
    """The receiver gets the deadline once, where it has a URL for that."""
    url = f"{receiver.url}/owners" if configured else ""
    notifier = WebhookNotifier(
        options=WebhookNotifier.Options(
            cordon_url=f"{receiver.url}/cordon",
            uncordon_url=f"{receiver.url}/uncordon",
            drain_url=f"{receiver.url}/drain",
            drain_status_url=f"{receiver.url}/status",
            notify_owners_url=url,
        ),
        clock=FixedClock(),
    )
    asked = msgspec.structs.replace(
        order("replace-1/drain", "XID 79"), deadline=datetime(2024, 1, 15, 12, tzinfo=UTC)
    )
    try:
        assert notifier.notifies_owners is configured
        if configured:
            await notifier.notify_owners(asked)
    finally:
        await notifier.close()
    found = [(path, body["event"], body["reason"]) for path, body in receiver.orders]
    assert found == [("/owners", "notify_owners", "XID 79")] * configured
    assert all(body["deadline"].startswith("2024-01-15T12:00:00") for _, body in receiver.orders)
