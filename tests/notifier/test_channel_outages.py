"""Each channel's other side is away for an hour: each alert comes once then, ended as ended."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry
from starlette.responses import PlainTextResponse, Response

from schemas.alert_records import Alert
from schemas.event_subjects import Event, event_subject
from schemas.messages import encode
from schemas.pool_events import BreakerClosed, BreakerOpened
from schemas.settings import AlertRoute
from schemas.topology import EVENTS
from services.bus.leases import Lease
from services.bus.nats.nats_bus import NatsBus
from services.notifier.alerts.alert_channel import AlertChannel, AlertDelivery
from services.notifier.alerts.alert_intake import AlertIntake
from services.notifier.alerts.alert_sender import AlertSender, RoutedChannel
from services.notifier.alerts.channels.email_channel import EmailChannel
from services.primitives.clock import SystemClock
from services.primitives.errors import Retry
from services.runtime.consumer_loop import Received
from services.runtime.failure_register import FailureRegister
from tests.notifier.sink_site import FastClock
from tests.notifier.test_alert_channels import CLOCK, VENDORS, Check, vendor
from tests.notifier.test_email_channel import mail_server

HOUR_SECONDS = 3_600.0
TIMES = 600.0
ENDS = ("resolve", "/close", "breaker closed", "white_check_mark")
"""Words of the vendors by which an alert is over."""


class Taken(NamedTuple):
    """Holds what the other side took: its text, and whether it ends an alert."""

    text: str
    over: bool


def opened(pool: str, at: datetime) -> BreakerOpened:
    return BreakerOpened(id=f"opened-{pool}", time=at, pool=pool, unavailable=2, limit=2)


def closed(pool: str, at: datetime) -> BreakerClosed:
    return BreakerClosed(id=f"closed-{pool}", time=at, pool=pool, unavailable=0, limit=2)


class Desk:
    """The intake and one channel's sender; the lease runs by the server's time."""

    def __init__(self, bus: NatsBus, channel: AlertChannel) -> None:
        self.bus = bus
        self.clock = FastClock(TIMES)
        self.intake = AlertIntake(bus)
        self.repeats = channel.repeat_seconds > 0
        route = AlertRoute(name="channel")
        lease = Lease(bus, SystemClock(), "notifier.leader", "r1")
        failures = FailureRegister(CollectorRegistry())
        channels = [RoutedChannel(route=route, channel=channel)]
        self.sender = AlertSender(channels, bus, self.clock, lease, failures)

    async def occur(self, event: Event) -> None:
        """Store an event and handle it, as its redeliveries would."""
        subject = event_subject(event)
        sequence = await self.bus.publish(subject, encode(event), msg_id=event.id)
        (stored,) = await self.bus.read_batch(EVENTS.name, subject, after=sequence - 1, count=1)
        for deliveries in (1, 2, 3):
            try:
                return await self.intake.handle(Received(event, stored, deliveries))
            except Retry:
                continue
        raise AssertionError("held for ever")


@asynccontextmanager
async def sending(bus: NatsBus, channel: AlertChannel) -> AsyncIterator[Desk]:
    desk = Desk(bus, channel)
    task = asyncio.create_task(desk.sender.run())
    try:
        yield desk
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await channel.close()


async def outage(desk: Desk, down: Callable[[bool], None], taken: list[Taken]) -> None:
    """`before` begins and is taken; then an hour in which it ends, and others come and go."""

    def about(pool: str) -> list[bool]:
        """Of each message about a pool, whether it ends the alert."""
        return [each.over for each in taken if pool in each.text]

    now = desk.clock.now
    await desk.occur(opened("before", now()))
    await until(lambda: about("before"))
    down(True)
    taken.clear()
    await desk.occur(opened("lasting", now()))
    await desk.occur(closed("before", now()))
    await desk.clock.sleep(HOUR_SECONDS / 2)
    await desk.occur(opened("brief", now()))
    await desk.occur(closed("brief", now()))
    await desk.clock.sleep(HOUR_SECONDS / 2)
    assert taken == []
    down(False)
    await until(lambda: about("lasting") and about("before"))
    once = len(about("lasting")), len(about("before"))
    await desk.clock.sleep(240)
    if not desk.repeats:
        assert (len(about("lasting")), len(about("before"))) == once
    assert (set(about("lasting")), set(about("before"))) == ({False}, {True})
    assert False not in about("brief")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("make", "check", "answer"), VENDORS)
async def test_after_an_hour_each_alert_is_delivered_as_it_is_then(
    bus: NatsBus,
    make: Callable[[str], AlertChannel],
    check: Check,
    answer: Callable[[str], Response],
) -> None:
    """Each alert is sent as it is when the channel returns.

    What lasts is sent once, what ended as ended, and what began and ended meanwhile not as lasting.
    """
    async with vendor(check, answer) as api:
        handle, taken = api.check, list[Taken]()

        def checked(path: str, body: Any) -> None:
            handle(path, body)
            text = f"{path} {body}"
            taken.append(Taken(text, any(each in text for each in ENDS)))

        def down(away: bool) -> None:
            api.answers[:] = [PlainTextResponse("away", 503)] * (10_000 if away else 0)

        api.check = checked
        async with sending(bus, make(api.url)) as desk:
            await outage(desk, down, taken)


async def test_mail_that_waited_for_an_hour_is_sent_once(bus: NatsBus) -> None:
    """The server takes no recipient meanwhile."""
    refusal = bytearray()
    async with mail_server(refusal) as (port, mails):  # type: ignore[arg-type]
        taken: list[Taken] = []

        class Counted(EmailChannel):
            async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
                sent = await super().send(alert, receipt)
                text = mails[-1].decode()
                taken.append(Taken(text, "closed" in text))
                return sent

        options = EmailChannel.Options(
            host="127.0.0.1", port=port, security="none", sender="n@example.com", to=("o@e.com",)
        )

        def down(away: bool) -> None:
            refusal[:] = b"451 try again later\r\n" if away else b""

        async with sending(bus, Counted(options=options, clock=CLOCK)) as desk:
            await outage(desk, down, taken)
