"""Channels are sent alerts through outages, stalls, rates, quiet hours and changes of replica."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from schemas import subjects
from schemas.alert_records import AlertAcknowledge
from schemas.duration import Duration
from schemas.messages import encode
from schemas.node_events import Lost, Returned, Verdict
from schemas.pool_events import BreakerClosed, BreakerOpened, SagaFailed
from schemas.settings import AlertRoute, HoursSpec, RateSpec
from services.bus.protocol.endpoint_replies import reply_data
from services.notifier.alerts.alert_sender import (
    BACKOFF_MAX_SECONDS,
    FAILING_SECONDS,
    RoutedChannel,
)
from services.notifier.alerts.open_alerts import AlertAcknowledgement, OpenAlerts
from services.primitives.errors import AnswerError, Unavailable
from services.simulator.engine.virtual_time import EPOCH, run
from tests.notifier.alert_desk import AlertDesk, RecordingChannel, alert_desk

HOUR = 3600.0


def opened(pool: str, **more: Any) -> BreakerOpened:
    known = {"id": f"opened-{pool}", "time": EPOCH} | more
    return BreakerOpened(pool=pool, unavailable=2, limit=2, **known)


def closed(pool: str) -> BreakerClosed:
    return BreakerClosed(id=f"closed-{pool}", time=EPOCH, pool=pool, unavailable=0, limit=2)


def test_after_an_outage_of_an_hour_each_alert_is_delivered_once() -> None:
    """An alert that began and lasts is sent once.

    One that ended meanwhile is sent as ended if the channel had it, and else not at all.
    """

    async def work() -> None:
        good, bad = RecordingChannel(), RecordingChannel()
        async with alert_desk(good, bad) as desk:
            await desk.occur(opened("before"))
            await asyncio.sleep(10)
            bad.down = True
            await desk.occur(opened("during"), opened("brief"), closed("before"))
            await asyncio.sleep(HOUR / 2)
            await desk.occur(closed("brief"), opened("late"))
            await asyncio.sleep(HOUR / 2)
            assert len(good.alerts) == 6
            assert bad.tries < HOUR / BACKOFF_MAX_SECONDS + 10
            bad.down = False
            await asyncio.sleep(BACKOFF_MAX_SECONDS + 1)
            sent = {key.removeprefix("breaker/"): over for key, over in bad.sent}
            assert len(bad.sent) == 4
            assert sent == {"before": True, "during": False, "late": False} | (
                {"brief": True} if "brief" in sent else {}
            )
            await asyncio.sleep(HOUR)
            assert len(bad.sent) == 4 or "brief" not in sent

    run(work)


def test_an_alert_that_no_send_was_tried_for_is_not_ended_either() -> None:
    """Ten pools open and close their breaker while the channel is down: at most one end."""

    async def work() -> None:
        bad = RecordingChannel()
        async with alert_desk(bad) as desk:
            bad.down = True
            for number in range(10):
                await desk.occur(opened(f"p{number}"))
            await asyncio.sleep(60)
            for number in range(10):
                await desk.occur(closed(f"p{number}"))
            bad.down = False
            await asyncio.sleep(BACKOFF_MAX_SECONDS + 1)
            assert [over for _, over in bad.sent] in ([], [True])
            assert await desk.records() == []

    run(work)


def test_a_channel_that_does_not_answer_delays_no_other_and_no_event() -> None:
    """The stalled one is given up after its time limit."""

    async def work() -> None:
        stalled, good = RecordingChannel(), RecordingChannel()
        stalled.stalls = True
        async with alert_desk(stalled, good) as desk:
            before = asyncio.get_running_loop().time()
            await desk.occur(*(opened(f"p{number}") for number in range(5)))
            assert asyncio.get_running_loop().time() - before < 1
            await asyncio.sleep(2)
            assert len(good.alerts) == 5

    run(work)


def test_a_channel_that_fails_is_reported_until_it_works() -> None:
    """The failure names the command that tries the channel; the channel itself is not sent this."""

    async def work() -> None:
        bad = RecordingChannel()
        async with alert_desk(bad) as desk:
            bad.down = True
            await desk.occur(opened("p"))
            await asyncio.sleep(FAILING_SECONDS / 2)
            assert desk.failures.current == ()
            await asyncio.sleep(3 * FAILING_SECONDS)
            (failure,) = desk.failures.current
            assert (failure.failure, failure.about) == (
                "alert-undelivered",
                "alert channel channel-0",
            )
            assert "navarch alerts test channel-0" in failure.remedy
            bad.down = False
            await asyncio.sleep(BACKOFF_MAX_SECONDS + 1)
            assert desk.failures.current == ()

    run(work)


def test_an_alert_that_is_refused_delays_no_other() -> None:
    """The failure is reported, and the alert tried again; when it is over it is forgotten."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            channel.refuses = "400 invalid_blocks"
            await desk.occur(opened("p"))
            await asyncio.sleep(10)
            (failure,) = desk.failures.current
            assert "400 invalid_blocks" in failure.reason
            channel.refuses = ""
            await desk.occur(opened("q"))
            await asyncio.sleep(10)
            assert channel.sent == [("breaker/q", False)]
            await asyncio.sleep(400)
            assert channel.sent[1:] == [("breaker/p", False)]
            assert desk.failures.current == ()

    run(work)


def test_a_receipt_comes_back_with_news_and_the_end_through_another_replica() -> None:
    """The first replica dies; the second updates and ends the same message."""

    async def work() -> None:
        channel = RecordingChannel()
        node: dict[str, Any] = {"time": EPOCH, "pool": "p", "node": "n"}
        worse = Verdict(id="v-2", **node, status="unhealthy", previous="degraded")
        async with alert_desk(channel) as desk:
            await desk.occur(replace(worse, id="v-1", status="degraded"))
            await asyncio.sleep(10)
            await desk.kill()
            desk.start("r2")
            await desk.occur(worse)
            await asyncio.sleep(10)
            await desk.occur(replace(worse, id="v-3", status="healthy"))
            await asyncio.sleep(10)
            assert channel.sent == [("health/p/n", each) for each in (False, False, True)]
            assert channel.receipts == ["", "receipt-1", "receipt-1"]
            assert channel.alerts[2].began == channel.alerts[0].time

    run(work)


def test_what_was_sent_while_the_bus_was_away_is_not_sent_twice() -> None:
    """The replica remembers it until the bus takes it."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            write, calls = desk.bus.update, 0

            async def failing(*given: Any, **more: Any) -> int:
                nonlocal calls
                calls += 1
                if 1 < calls < 6:
                    raise Unavailable("no leader")
                return await write(*given, **more)

            desk.bus.update = failing  # type: ignore[method-assign]
            await desk.occur(opened("p"))
            await asyncio.sleep(60)
            assert calls > 5
            assert channel.sent == [("breaker/p", False)]

    run(work)


def test_two_replicas_send_an_alert_once() -> None:
    """Only the holder of the lease sends."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            for name in ("r2", "r3"):
                desk.start(name)
            await desk.occur(opened("p"))
            await asyncio.sleep(60)
            assert len(channel.sent) == 1

    run(work)


def routed(channel: RecordingChannel, **route: Any) -> RoutedChannel:
    return RoutedChannel(route=AlertRoute(name="it", **route), channel=channel)


def test_beyond_the_rate_one_alert_says_how_many_wait() -> None:
    """The others follow as the rate allows, the critical first; those over by then do not."""

    async def work() -> None:
        channel = RecordingChannel()
        rate = RateSpec(alerts=3, window=Duration(600))
        async with alert_desk(routed(channel, rate=rate)) as desk:
            await occur_in(desk, 8)
            await asyncio.sleep(30)
            keys = [key for key, _ in channel.sent]
            assert len(keys) == 4
            assert channel.alerts[-1].title.endswith("more alerts wait")
            assert keys[-1] == "held/it"
            await desk.occur(*(closed(f"p{number}") for number in range(3, 6)))
            await asyncio.sleep(1300)
            begun = [key for key, over in channel.sent if not over and key != "held/it"]
            assert len(begun) == len(set(begun)) == 5
            assert ("held/it", True) in channel.sent

    run(work)


async def occur_in(desk: AlertDesk, pools: int) -> None:
    for number in range(pools):
        await desk.occur(opened(f"p{number}"))


def test_an_acknowledged_alert_is_news_at_once_and_not_repeated() -> None:
    """The news is sent beyond the rate too; the first operator keeps it, and its end follows."""

    async def work() -> None:
        channel = RecordingChannel()
        rate = RateSpec(alerts=1, window=Duration(3600))
        async with alert_desk(routed(channel, rate=rate)) as desk:
            found = AlertAcknowledgement(OpenAlerts(desk.bus), desk.clock)
            await desk.bus.serve("notifier", "", found.endpoints)
            await desk.occur(opened("p"))
            await asyncio.sleep(5)
            for who in ("ada", "bob"):
                await acknowledge(desk, "breaker/p", who)
            await asyncio.sleep(5)
            first, news = channel.alerts
            assert (first.acknowledged_by, news.acknowledged_by) == ("", "ada")
            assert news.text == f"Acknowledged by ada: on it. {first.text}"
            assert news.began == first.time
            assert channel.receipts == ["", "receipt-1"]
            await desk.occur(opened("p", id="later", time=EPOCH + timedelta(hours=2)))
            await asyncio.sleep(HOUR)
            assert len(channel.alerts) == 2
            await desk.occur(closed("p"))
            await asyncio.sleep(5)
            assert channel.sent[-1] == ("breaker/p", True)
            for key in ("breaker/q", "breaker/p"):
                with pytest.raises(AnswerError, match=r"no open alert 'breaker/.'"):
                    await acknowledge(desk, key, "ada")

    run(work)


async def acknowledge(desk: AlertDesk, key: str, user: str) -> None:
    order = AlertAcknowledge(key=key, reason="on it")
    subject = subjects.order("acknowledge-alert", user)
    reply_data(await desk.bus.request(subject, encode(order), timeout_seconds=30))


def test_quiet_hours_hold_what_is_not_critical() -> None:
    """Warnings wait for the morning; what ended in the night is not sent at all."""

    async def work() -> None:
        channel = RecordingChannel()
        hours = HoursSpec(start="08:00", end="20:00")
        async with alert_desk(routed(channel, hours=hours)) as desk:
            # Virtual time begins at midnight, in UTC.
            await desk.occur(opened("a", by="ops"), opened("b", by="ops"), opened("c"))
            await asyncio.sleep(4 * HOUR)
            assert channel.sent == [("breaker/c", False)]
            await desk.occur(closed("b"), closed("c"))
            await asyncio.sleep(4 * HOUR - 60)
            assert channel.sent == [("breaker/c", False), ("breaker/c", True)]
            await asyncio.sleep(120)
            assert channel.sent[2:] == [("breaker/a", False)]

    run(work)


def test_a_channel_that_forgets_is_sent_open_alerts_again() -> None:
    """The channel is sent them at its interval, and not after their end."""

    async def work() -> None:
        channel = RecordingChannel(repeat_seconds=60)
        async with alert_desk(channel) as desk:
            await desk.occur(opened("p"))
            await asyncio.sleep(600)
            assert 9 <= len(channel.sent) <= 12
            await desk.occur(closed("p"))
            await asyncio.sleep(10)
            sent = list(channel.sent)
            await asyncio.sleep(600)
            assert channel.sent == sent
            assert sent[-1] == ("breaker/p", True)

    run(work)


def test_a_condition_that_returns_is_a_new_alert() -> None:
    """Lost, returned, lost: for a channel that was down in between, one alert that lasts."""

    async def work() -> None:
        good, bad = RecordingChannel(), RecordingChannel()
        node: dict[str, Any] = {"pool": "p", "node": "n"}
        async with alert_desk(good, bad) as desk:
            await desk.occur(Lost(id="l-1", time=EPOCH, **node))
            await asyncio.sleep(10)
            bad.down = True
            later = EPOCH + timedelta(seconds=100)
            await desk.occur(Returned(id="r-1", time=later, **node))
            await asyncio.sleep(100)
            await desk.occur(Lost(id="l-2", time=later, **node))
            await asyncio.sleep(10)
            bad.down = False
            await asyncio.sleep(BACKOFF_MAX_SECONDS + 1)
            assert [over for _, over in good.sent] == [False, True, False]
            assert [each.event for each in bad.alerts][-1] == "l-2"
            assert bad.sent.count(("lost/p/n", True)) <= 1

    run(work)


def test_nothing_is_kept_of_what_has_ended() -> None:
    """A failure that was not tried again ends after an hour, and its record goes."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            await desk.occur(
                SagaFailed(id="f", time=EPOCH, pool="p", saga="s", step="x", reason="r")
            )
            await asyncio.sleep(2 * HOUR)
            assert channel.sent == [("saga-failed/p", False), ("saga-failed/p", True)]
            assert await desk.records() == []

    run(work)
