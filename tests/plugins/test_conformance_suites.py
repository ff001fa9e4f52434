"""The suites of schedulers, channels and remediators: Navarch's own pass, and defects are found."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

import pytest

from services.notifier.alerts.alert_channel import AlertChannel, AlertDelivery
from services.notifier.alerts.channels.webhook_channel import AlertWebhookChannel
from services.notifier.conformance import ChannelConformance
from services.pool_manager.planner.remediator import BUILT_IN, Remediator, RemedyChoice
from services.pool_manager.remediator_conformance import RemediatorConformance
from services.primitives.clock import SystemClock
from services.provisioner.offerings.scheduler import Scheduler
from services.provisioner.offerings.scheduler_conformance import BARE, SchedulerConformance
from services.provisioner.offerings.strategies import STRATEGIES


class TestSchedulers(SchedulerConformance):
    """Runs the suite with the four strategies of Navarch."""

    @pytest.fixture(params=sorted(STRATEGIES))
    def make(self, request: pytest.FixtureRequest) -> Callable[[], Scheduler]:
        kind = STRATEGIES[request.param]
        return lambda: kind(options=kind.Options())


class TestRemediators(RemediatorConformance):
    """Runs the suite with the three remediators of Navarch."""

    @pytest.fixture(params=sorted(BUILT_IN))
    def make(self, request: pytest.FixtureRequest) -> Callable[[], Remediator]:
        kind: Any = BUILT_IN[request.param]
        return lambda: kind(options=kind.Options())


class _Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


class TestWebhookChannel(ChannelConformance):
    """The alert channel `webhook`, against a server that takes everything."""

    @pytest.fixture
    def make(self) -> Iterator[Callable[[], AlertChannel]]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Taking)
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield lambda: _webhook(server.server_port)
        server.shutdown()
        server.server_close()
        thread.join()

    @pytest.fixture
    def unreachable(self) -> Callable[[], AlertChannel]:
        return lambda: _webhook(1)


def _webhook(port: int) -> AlertChannel:
    options = AlertWebhookChannel.Options(url=f"http://127.0.0.1:{port}/")
    return AlertWebhookChannel(options=options, clock=SystemClock())


class Silent:
    """A channel that returns nothing, and raises nothing."""

    Options = AlertWebhookChannel.Options

    name = "silent"
    repeat_seconds = 0.0

    async def send(self, alert: Any, receipt: str) -> Any: ...

    async def close(self) -> None: ...


class Delivers(Silent):
    """A channel that claims to have delivered what it has not."""

    async def send(self, *_: Any) -> Any:
        return AlertDelivery()


class Remembers:
    """A scheduler and remediator whose answers depend on how often it was asked."""

    asked = 0

    async def score(self, *_: Any) -> Any:
        self.asked += 1
        return float(self.asked)

    def choose(self, *_: Any) -> Any:
        self.asked += 1
        return RemedyChoice(remedy="reboot" if self.asked % 2 else "replace")


class Reboots:
    """A remediator that reboots for ever."""

    def choose(self, *_: Any) -> Any:
        return RemedyChoice(remedy="reboot")


class Infinite:
    """A scheduler whose score is no finite number."""

    async def score(self, *_: Any) -> Any:
        return float("inf")


CHANNEL: Final = ChannelConformance()
RANKS: Final = SchedulerConformance()
REMEDIES: Final = RemediatorConformance()


async def test_defects_of_channels_are_found() -> None:
    """A channel without an answer, and one that hides an outage, fail their suite."""
    with pytest.raises(AssertionError, match="send returned None"):
        await CHANNEL.test_a_long_text_is_delivered(Silent)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await CHANNEL.test_an_other_side_that_is_away_is_an_exception(Delivers)


async def test_defects_of_schedulers_are_found() -> None:
    """A score that is not finite, and one that depends on earlier questions, fail the suite."""
    with pytest.raises(AssertionError, match="not finite"):
        await RANKS.test_each_offering_has_a_finite_score(Infinite, BARE)
    with pytest.raises(AssertionError, match="remembers"):
        await RANKS.test_the_same_offering_has_the_same_score(Remembers)


def test_defects_of_remediators_are_found() -> None:
    """A remediator that remembers, and one that reboots for ever, fail the suite."""
    with pytest.raises(AssertionError, match="remembers"):
        REMEDIES.test_the_same_question_has_the_same_answer(Remembers)
    with pytest.raises(AssertionError, match="another one"):
        REMEDIES.test_attempts_come_to_an_end(Reboots)
