"""Silences, assignments and notes of open alerts: what channels are sent, and what is refused."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.alert_records import SILENCE_SECONDS_MAX, Alert, AlertUpdate
from schemas.messages import encode
from services.bus.protocol.endpoint_replies import reply_data
from services.notifier.alerts.alert_rules import STORE_KEY
from services.notifier.alerts.alert_updates import AlertUpdates, refusal
from services.notifier.alerts.open_alerts import OpenAlerts
from services.primitives.errors import AnswerError
from tests.notifier.test_alert_sender import (
    EPOCH,
    HOUR,
    AlertDesk,
    RecordingChannel,
    alert_desk,
    closed,
    opened,
    routed,
    run,
)

KEY = "breaker/p"


async def order(desk: AlertDesk, user: str = "ada", **fields: Any) -> None:
    """Send an order about the alert."""
    data = encode(AlertUpdate(**{"key": KEY, **fields}))
    subject = subjects.order("update-alert", user)
    reply_data(await desk.bus.request(subject, data, timeout_seconds=30))


async def served(desk: AlertDesk) -> None:
    """Serve the orders, and let the alert begin."""
    await desk.bus.serve("notifier", "", AlertUpdates(OpenAlerts(desk.bus), desk.clock).endpoints)
    await desk.occur(opened("p"))
    await asyncio.sleep(5)


def test_a_silenced_alert_is_sent_again_when_its_silence_ends() -> None:
    """Nothing comes meanwhile, also no repetition; then the alert comes with who silenced it."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(routed(channel)) as desk:
            await served(desk)
            await order(desk, silence_seconds=7_200, note="known")
            await desk.occur(opened("p", id="again", time=EPOCH + timedelta(hours=1, minutes=30)))
            await asyncio.sleep(2 * HOUR - 60)
            assert len(channel.alerts) == 1
            await asyncio.sleep(120)
            first, news = channel.alerts
            assert news.text.startswith("Silenced by ada until ")
            assert news.text.endswith(f": known. {first.text}")
            assert news.silenced_by == "ada"

    run(work)


def test_a_silence_hides_no_end() -> None:
    """Channels that have the alert are sent its end at once, and nothing when the silence ends."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(routed(channel)) as desk:
            await served(desk)
            await order(desk, silence_seconds=3_600)
            await desk.occur(closed("p"))
            await asyncio.sleep(5)
            assert channel.sent == [(KEY, False), (KEY, True)]
            await asyncio.sleep(2 * HOUR)
            assert len(channel.sent) == 2

    run(work)


def test_an_assignment_and_a_note_are_news_and_stay() -> None:
    """Each is sent at once; a later event of the same alert keeps who looks after it."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(routed(channel)) as desk:
            await served(desk)
            await order(desk, assign_to="bob", note="on call")
            await asyncio.sleep(5)
            await order(desk, user="bob", note="ticket 4711")
            await asyncio.sleep(5)
            first, assigned, noted = channel.alerts
            assert assigned.text == f"Assigned to bob by ada: on call. {first.text}"
            assert noted.text == f"Note by bob: ticket 4711. {assigned.text}"
            assert (noted.assigned_to, noted.began) == ("bob", first.time)
            await desk.occur(opened("p", id="later", time=EPOCH + timedelta(hours=2)))
            await asyncio.sleep(3 * HOUR)
            assert channel.alerts[-1].assigned_to == "bob"

    run(work)


def test_an_unknown_alert_is_refused() -> None:
    """The error says where the keys are."""

    async def work() -> None:
        async with alert_desk(routed(RecordingChannel())) as desk:
            await served(desk)
            with pytest.raises(AnswerError, match="no open alert 'breaker/q'"):
                await order(desk, key="breaker/q", note="x")

    run(work)


@pytest.mark.parametrize(
    ("kind", "key", "says"),
    [
        ("stopped", "stop/fleet", "navarch resume ends it"),
        ("service-failure", f"{STORE_KEY}stream EVENTS", "the store is lost"),
        ("service-failure", "failure/x", ""),
        ("verdict", "health/p/n1", ""),
    ],
)
def test_a_stop_and_a_lost_store_are_not_silenced(kind: Any, key: str, says: str) -> None:
    """Nothing else would say so; every other alert may be silenced."""
    alert = Alert(
        severity="critical", title="t", text="t", kind=kind, key=key, event="e", time=EPOCH
    )
    assert (says in refusal(alert), bool(refusal(alert))) == (True, bool(says))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"silence_seconds": 60, "assign_to": "bob"},
        {"silence_seconds": SILENCE_SECONDS_MAX + 1},
        {"silence_seconds": -1},
        {"note": "x" * 501},
    ],
)
def test_an_update_without_one_clear_meaning_is_refused(fields: dict[str, Any]) -> None:
    """A silence has an end within a week, and two changes are two orders."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"key": KEY, **fields}, AlertUpdate)
