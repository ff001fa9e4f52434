"""Tests the contract of an alert channel: the author of a plugin runs them with pytest.

    import pytest
    from navarch.services.notifier.conformance import ChannelConformance

    class TestPager(ChannelConformance):
        @pytest.fixture
        def make(self, pager):
            return lambda: Pager(options=Pager.Options(url=pager.url), clock=SystemClock())

        @pytest.fixture
        def unreachable(self):
            options = Pager.Options(url="http://127.0.0.1:1")
            return lambda: Pager(options=options, clock=SystemClock())

They need pytest and pytest-asyncio (`navarch[conformance]`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import pytest
from msgspec.structs import replace

from schemas.alert_records import Alert
from schemas.plugin_kinds import ALERT_CHANNEL
from schemas.settings import Setting
from services.notifier.alerts.alert_channel import (
    RECEIPT_CHARS_MAX,
    AlertChannel,
    AlertDelivery,
    ChannelRefusalError,
)

Make = Callable[[], AlertChannel]
ALERT: Final = Alert(
    severity="critical",
    title="Navarch: a test",
    text="Two of eight nodes of pool training are unhealthy.\nNothing is to be done.",
    kind="breaker-opened",
    key="breaker/training",
    event="conformance-1",
    time=datetime(2030, 1, 7, tzinfo=UTC),
)
LONG: Final = replace(ALERT, key="breaker/long", event="conformance-2", text="x\u00e9" * 20_000)


class ChannelConformance:
    """Inherit, name the class `Test…`, and write the fixtures `make` and `unreachable`."""

    @pytest.fixture
    def make(self) -> Make:
        """Return what makes the channel, whose other side answers."""
        raise NotImplementedError("write the fixture `make`: see the module's first lines")

    @pytest.fixture
    def unreachable(self) -> Make:
        """Return what makes the channel, whose other side is away."""
        raise NotImplementedError("write the fixture `unreachable`: see the module's first lines")

    def test_it_says_what_it_is(self, make: Make) -> None:
        """Options are a struct, the name is not empty, and the interval is no less than nothing."""
        channel = make()
        options = getattr(type(channel), "Options", None)
        assert options is not None, "it has no inner struct `Options`"
        assert issubclass(options, Setting), "Options is no schemas.settings.Setting"
        assert channel.name, "its name is empty"
        assert channel.repeat_seconds >= 0, f"repeat_seconds is {channel.repeat_seconds}"

    async def test_an_alert_its_repetition_and_its_end_are_delivered(self, make: Make) -> None:
        """Each is answered with a delivery, whose receipt is given with the next."""
        async with _open(make) as channel:
            receipt = ""
            for alert in (ALERT, ALERT, replace(ALERT, event="conformance-3", resolved=True)):
                receipt = (await _sent(channel, alert, receipt)).receipt or receipt

    async def test_a_fresh_channel_ends_what_another_began(self, make: Make) -> None:
        """The receipt is all that is kept: another replica ends the alert."""
        async with _open(make) as channel:
            receipt = (await _sent(channel, ALERT, "")).receipt
        async with _open(make) as channel:
            await _sent(channel, replace(ALERT, event="conformance-3", resolved=True), receipt)

    async def test_a_long_text_is_delivered(self, make: Make) -> None:
        """A text that the other side would not take is cut by the channel, or refused."""
        async with _open(make) as channel:
            try:
                await _sent(channel, LONG, "")
            except ChannelRefusalError as error:
                assert str(error).strip(), "its refusal has no text"  # noqa: PT017 - either will do

    async def test_an_other_side_that_is_away_is_an_exception(self, unreachable: Make) -> None:
        """The exception comes in time, is no refusal, and is none of those that end a process."""
        async with _open(unreachable) as channel:
            with pytest.raises(Exception) as raised:  # noqa: PT011 - any is right
                await _sent(channel, ALERT, "")
        assert not isinstance(raised.value, ChannelRefusalError), "an outage is no refusal"
        assert str(raised.value).strip(), "its exception has no text"

    async def test_a_cancelled_delivery_leaves_it_usable(self, make: Make) -> None:
        """The notifier's own limit cancels a delivery; the next one is made."""
        async with _open(make) as channel:
            sending = asyncio.ensure_future(channel.send(ALERT, ""))
            await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await _sent(channel, ALERT, "")

    async def test_closing_twice_is_once(self, make: Make) -> None:
        """The channel can be closed without a delivery before, and again."""
        channel = make()
        await channel.close()
        await channel.close()


@asynccontextmanager
async def _open(make: Make) -> AsyncIterator[AlertChannel]:
    channel = make()
    try:
        yield channel
    finally:
        await channel.close()


async def _sent(channel: AlertChannel, alert: Alert, receipt: str) -> AlertDelivery:
    async with asyncio.timeout(ALERT_CHANNEL.call_seconds):
        found = await channel.send(alert, receipt)
    assert isinstance(found, AlertDelivery), f"send returned {found!r}, and not AlertDelivery"
    assert isinstance(found.receipt, str), f"{found.receipt!r} is no text"
    assert len(found.receipt) <= RECEIPT_CHARS_MAX, "its receipt is too long to be kept"
    assert isinstance(found.answer, str), f"{found.answer!r} is no text"
    return found
