"""Stops over hours: repeated news, ends by themselves, the metric and the lines of `status`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.fleet_events import AutomationStopped
from schemas.headers import SUBJECT
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.operations import RESUME, STOP
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import FleetBudgetSpec, PoolSpec
from schemas.stops import ResumeRequest, Stop, StopRequest, StopsAnswer, StopState, WaitingStart
from services.bus.nats.nats_bus import NatsBus
from services.metrics.fleet.fleet_metrics import stop_gauge
from services.notifier.alerts.alert_rules import alert_of, ended_keys
from services.operator_text.stop_text import stop_lines, waiting_rows
from services.pool_manager.fleet_stops import FleetStops
from services.pool_manager.planner.explanation.pool_explanation import present_answer
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.safety.stop_gate import any_of
from services.pool_manager.pool_store import Store
from services.primitives.clock import SystemClock
from services.primitives.errors import Conflict
from services.runtime.stop_watch import StopWatch

NOW = datetime(2026, 5, 5, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
SPEC = PoolSpec(min_nodes=0, max_nodes=9, provider="aws")


@dataclass(slots=True)
class Clock(SystemClock):
    """Shows the time that a test sets."""

    at: datetime = NOW

    def now(self) -> datetime:
        """Return that time."""
        return self.at


async def nothing(_: str, __: StopState) -> Mapping[str, OpenSaga]:
    """Return that nothing would begin."""
    return {}


@dataclass(slots=True)
class Replica:
    """A replica that answers orders."""

    bus: NatsBus
    clock: Clock = field(default_factory=Clock)
    stops: FleetStops = field(init=False)
    watch: StopWatch = field(init=False)

    def __post_init__(self) -> None:
        """Serve nothing: tests call the endpoints."""
        self.watch = StopWatch(self.bus)
        store = Store(self.bus, FleetBudgetSpec())
        self.stops = FleetStops(
            *(self.bus, self.clock, store, self.watch, nothing), frozenset({"aws"})
        )

    async def order(self, name: str, request: msgspec.Struct) -> StopsAnswer:
        """Give an order as ada."""
        endpoint = self.stops.endpoints()[subjects.order_wildcard(name)]
        data = await endpoint(encode(request), {SUBJECT: subjects.order(name, "ada")})
        return msgspec.json.decode(data, type=StopsAnswer)

    async def news(self) -> list[AutomationStopped]:
        """Return what was published of stops."""
        found = await self.bus.read("EVENTS", subjects.fleet_event("automation-stopped"))
        return [msgspec.json.decode(each.data, type=AutomationStopped) for each in found]


@pytest.mark.parametrize(
    ("until", "hours", "expected"),
    [
        (None, [0, 1, 3], ["stopped"]),
        (None, [4, 5, 8, 11, 12], ["stopped"] * 4),
        (NOW + 24 * HOUR, [4, 8, 12], ["stopped"]),
        (NOW + 5 * HOUR, [4, 6, 7], ["stopped", "resumed"]),
    ],
)
async def test_a_stop_without_an_end_is_published_every_four_hours(
    bus: NatsBus, until: datetime | None, hours: list[int], expected: list[str]
) -> None:
    """Each time once, however often it is looked at; one with an end ends by itself."""
    replica = Replica(bus)
    await replica.watch.read()
    await replica.order(STOP.name, StopRequest(reason="x", until=until))
    for each in hours:
        replica.clock.at = NOW + each * HOUR
        await replica.stops.keep()
        await replica.stops.keep()
    found = await replica.news()
    assert expected == [each.status for each in found]
    assert len(found) == len({each.id for each in found})
    over = until is not None and replica.clock.at >= until
    assert over == (not replica.watch.state().stops)


async def test_the_alert_begins_again_every_four_hours_and_ends(bus: NatsBus) -> None:
    """One key for all of them, by which the resume ends it."""
    replica = Replica(bus)
    await replica.watch.read()
    await replica.order(STOP.name, StopRequest(provider="aws", reason="x"))
    replica.clock.at = NOW + 4 * HOUR
    await replica.stops.keep()
    await replica.order(RESUME.name, ResumeRequest(provider="aws"))
    first, second, end = await replica.news()
    keys = {alert.key for alert in map(alert_of, (first, second)) if alert is not None}
    assert {"stop/provider.aws"} == keys
    assert ["stop/provider.aws"] == list(ended_keys(end))
    assert alert_of(end) is None


async def test_a_stop_that_is_ordered_again_keeps_its_beginning(bus: NatsBus) -> None:
    """The later reason is published and shown, with the limits of the later order."""
    replica = Replica(bus)
    await replica.watch.read()
    await replica.order(STOP.name, StopRequest(reason="first"))
    replica.clock.at = NOW + HOUR
    [stop] = (await replica.order(STOP.name, StopRequest(reason="then", running=True))).stops
    assert (NOW, "then", True) == (stop.since, stop.reason, stop.running)
    assert ["first", "then"] == [each.reason for each in await replica.news()]


async def test_what_was_decided_before_a_stop_is_not_written_after_it(bus: NatsBus) -> None:
    """A replica that was halted between its decision and its write is refused."""
    replica, store = Replica(bus), Store(bus, FleetBudgetSpec())
    await replica.watch.read()
    await store.create_pool(PoolRecord(name="web", spec=SPEC, desired=2))
    decided = await store.pool("web")
    assert decided is not None
    await replica.order(STOP.name, StopRequest(reason="x"))
    with pytest.raises(Conflict):
        await store.save_pool(*decided)
    found = await store.pool("web")
    assert found is not None
    assert decided[0] == found[0]


async def test_a_time_that_is_over_is_refused(bus: NatsBus) -> None:
    """Nothing is recorded."""
    replica = Replica(bus)
    await replica.watch.read()
    with pytest.raises(ValueError, match="is over already"):
        await replica.order(STOP.name, StopRequest(reason="x", until=NOW))
    assert {} == replica.watch.state().stops


def test_the_metric_has_a_series_for_each_scope() -> None:
    """The fleet's is 0 where it is not stopped, so that a query has an answer."""
    one = Stop(pool="web", reason="x", since=NOW)
    over = Stop(provider="aws", reason="x", since=NOW, until=NOW + HOUR)
    state = StopState({each.scope: each for each in (one, over)})
    assert {("fleet",): 0.0, ("pool.web",): 1.0} == stop_gauge(state, NOW + HOUR).values
    assert {("fleet",): 1.0} == stop_gauge(StopState(known=False), NOW).values


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({}, "STOPPED the fleet by ada since 05-05 12:00 UTC: x: nothing automatic begins."),
        ({"running": True}, "begins, and open sagas wait."),
        ({"pool": "web"}, "To go on: navarch resume --pool web"),
        ({"provider": "aws", "until": NOW + HOUR}, "UTC until 05-05 13:00 UTC: x"),
        ({}, "2 actions wait, on nodes that cost $62.50 an hour."),
    ],
)
def test_status_begins_with_the_stop(about: dict[str, Any], words: str) -> None:
    """The lines name who, since when, why, what waits and what it costs, and how to go on."""
    stop = Stop(reason="x", by="ada", since=NOW, **about)
    found = StopsAnswer(stops=(stop,), waiting_total=2, dollars_per_hour=62.5)
    [line] = stop_lines(found)
    assert words in line


def test_what_would_begin_is_listed() -> None:
    """A launch has no node, and a price that is not known is none."""
    rows = waiting_rows(
        (
            WaitingStart(pool="web", kind="scale-up"),
            WaitingStart(pool="web", kind="replace", node="web-1", dollars_per_hour=31, reason="r"),
        )
    )
    assert [
        ("web", "scale-up", "a new one", "-", "-"),
        ("web", "replace", "web-1", "31.00", "r"),
    ] == rows


@pytest.mark.parametrize(
    ("about", "named"),
    [
        ({}, "fleet is stopped by ada"),
        ({"pool": "web"}, "pool.web is stopped by ada"),
        ({"provider": "aws"}, "provider.aws is stopped by ada"),
        ({"running": True}, "and open sagas that no operator asked for wait"),
        ({"pool": "training"}, ""),
        ({"until": NOW}, ""),
    ],
)
def test_why_names_the_stop(about: dict[str, Any], named: str) -> None:
    """The pool's answer begins with the stop in force, and so does that of an unhealthy node."""
    given = Stop(reason="x", by="ada", since=NOW, **about)
    pool = PoolRecord(name="web", spec=SPEC, desired=1)
    node = NodeRecord(pool="web", node="web-1", state="active", health="unhealthy")
    stop = any_of(StopState({given.scope: given}), "web", SPEC, NOW)
    answer = present_answer(pool, Nodes([node]), NOW, stop=stop)
    first = answer.blocked[0].text if answer.blocked else ""
    [waits] = answer.of("web-1").blocked
    assert named in first
    assert (waits.gate == "stop") is bool(named)
    resumes = f"navarch resume{''.join(f' --{k} {v}' for k, v in about.items() if k != 'running')}"
    assert waits.remedy == (resumes if named else "")
