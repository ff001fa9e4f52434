"""An alert that is over is not sent, the end of a sent one is, and every alert has an end."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from schemas.duration import decode_hook
from schemas.event_subjects import Event, event_subject
from schemas.fleet_events import FACTS as FLEET_FACTS
from schemas.fleet_events import ConsumerLag, ServiceFailure, UnknownError
from schemas.health_records import HealthRecord
from schemas.machine_identity import MachineIdentity
from schemas.messages import encode
from schemas.node_events import (
    NODE_EVENT_TYPES,
    Admitted,
    Cordoned,
    Drained,
    Lost,
    MachineRefused,
    Returned,
    Terminated,
    Verdict,
)
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import (
    POOL_EVENT_TYPES,
    BreakerClosed,
    BreakerOpened,
    Incident,
    InstanceLeaked,
    LaunchRefused,
    NodeRefused,
    NodeReplaced,
    OperatorNeeded,
    PoolRemoved,
    SagaFailed,
    SagaIsStuck,
    SagaOverdue,
)
from schemas.stream_specs import BucketSpec
from schemas.topology import EVENTS, HEALTH, NODES, NOTIFIER_ALERTS
from services.bus.topology_setup import set_up
from services.notifier.alerts.alert_dedup import EACH_MAX, HOLD_SECONDS, QUIET_SECONDS
from services.notifier.alerts.alert_intake import AlertIntake
from services.notifier.alerts.alert_rules import UNKNOWN_AFTER, alert_of, ending_subjects
from services.simulator.engine.virtual_time import EPOCH, run
from tests.golden.examples import example
from tests.notifier.alert_desk import RecordingChannel, alert_desk

NOW = EPOCH
NODE: dict[str, Any] = {"time": NOW, "pool": "training", "node": "n1"}
POOL: dict[str, Any] = {"time": NOW, "pool": "training"}
LAG: dict[str, Any] = {"time": NOW, "stream": "EVENTS", "durable": "d", "messages": 1, "seconds": 9}
LOST = Lost(id="lost-1", **NODE)
UNHEALTHY = Verdict(id="bad-1", **NODE, status="unhealthy", previous="healthy", reason="XID 79")
HEALTHY = Verdict(id="good-1", **NODE, status="healthy", previous="unhealthy")
LAGGING = ConsumerLag(id="lag-1", status="lagging", **LAG)
OPENED = BreakerOpened(id="opened-1", **POOL, unavailable=2, limit=2)
RETURNED = Returned(id="returned-1", **NODE)
GONE = Terminated(id="gone-1", **NODE)
REPLACED = NodeReplaced(id="r-1", **POOL, old_node="n1", new_node="n4", saga="replace-n1-1")
ADMITTED = Admitted(id="in-1", time=NOW, pool="training", node="n5", saga="scale-up-n5")
STUCK = SagaIsStuck(id="stuck-1", **POOL, saga="replace-n1-1", step="cordon", reason="401")
FAILED = SagaFailed(id="f-1", **POOL, saga="replace-n1-1", step="drain", reason="r", node="n1")
LAUNCH = SagaFailed(id="f-2", **POOL, saga="scale-up-n5", step="provision", reason="r")
STEP: dict[str, Any] = {**NODE, "saga": "replace-n1-1"}
TIMES: dict[str, Any] = {"nodes": 6, "first": NOW, "last": NOW, "kind": "xid", "code": 79}
INCIDENT = Incident(id="i-1", **POOL, incident="xid-79-1", status="opened", **TIMES)
FAILURE: dict[str, Any] = {"service": "s", "failure": "store-lost", "about": "stream EVENTS"}
LOSS = ServiceFailure(id="s-1", time=NOW, status="failing", **FAILURE, reason="r", remedy="m")
MACHINE = MachineIdentity(boot_id="b", since=NOW, heard_at=NOW, registered_at=NOW)
REFUSED = MachineRefused(id="m-1", **NODE, machine=MACHINE, refused=MACHINE)
ENDS = [
    pytest.param(LOST, RETURNED, id="returned"),
    pytest.param(LOST, GONE, id="lost and terminated"),
    pytest.param(LOST, REPLACED, id="lost and replaced"),
    pytest.param(UNHEALTHY, HEALTHY, id="healthy"),
    pytest.param(UNHEALTHY, GONE, id="terminated"),
    pytest.param(UNHEALTHY, REPLACED, id="replaced"),
    pytest.param(OperatorNeeded(id="needed-1", **NODE), HEALTHY, id="no operator needed"),
    pytest.param(OperatorNeeded(id="needed-1", **NODE), GONE, id="needed and terminated"),
    pytest.param(LAGGING, ConsumerLag(id="lag-2", status="caught-up", **LAG), id="caught up"),
    pytest.param(OPENED, BreakerClosed(id="closed-1", **POOL, unavailable=0, limit=2), id="closed"),
    pytest.param(OPENED, PoolRemoved(id="removed-1", **POOL), id="pool removed"),
    pytest.param(INCIDENT, replace(INCIDENT, id="i-2", status="closed"), id="incident over"),
    pytest.param(INCIDENT, PoolRemoved(id="removed-1", **POOL), id="incident, pool removed"),
    pytest.param(STUCK, REPLACED, id="stuck and done"),
    pytest.param(STUCK, Cordoned(id="c-1", **STEP), id="stuck and retried"),
    pytest.param(STUCK, FAILED, id="stuck and unwound"),
    pytest.param(
        SagaOverdue(id="late-1", **POOL, saga="replace-n1-1", step="drain", node="n1"),
        Drained(id="d-1", **STEP),
        id="overdue and drained",
    ),
    pytest.param(FAILED, REPLACED, id="failed and replaced"),
    pytest.param(FAILED, HEALTHY, id="failed and healthy"),
    pytest.param(LAUNCH, ADMITTED, id="launch failed and admitted"),
    pytest.param(
        NodeRefused(id="no-1", **NODE, saga="s", remedy="look"), ADMITTED, id="refused and admitted"
    ),
    pytest.param(
        LaunchRefused(id="no-2", **NODE, refusal="above-pool-cap", reason="r"),
        ADMITTED,
        id="launch refused and admitted",
    ),
    pytest.param(
        InstanceLeaked(id="leak-1", **POOL, instance="n1", provider="lambda"),
        Terminated(id="gone-2", **STEP),
        id="leaked and terminated",
    ),
    pytest.param(REFUSED, GONE, id="second machine, and terminated"),
    pytest.param(REFUSED, REPLACED, id="second machine, and replaced"),
    pytest.param(LOSS, replace(LOSS, id="s-2", status="recovered"), id="works again"),
]
ONLY_QUIET = {UnknownError}
"""Nothing observes the end of these."""


def test_every_alert_rule_has_an_end() -> None:
    """Each event that alerts is in the table above, or ends by time alone."""
    alerting = {
        kind
        for kind in (*NODE_EVENT_TYPES, *POOL_EVENT_TYPES, *FLEET_FACTS)
        if (event := begins(kind)) is not None and alert_of(event) is not None
    }
    assert alerting == {type(each.values[0]) for each in ENDS} | ONLY_QUIET


def begins(kind: type[Any]) -> Any:
    """An event of a kind, as it alerts if any of the kind does."""
    event = msgspec.json.decode(example(kind), type=kind, dec_hook=decode_hook)
    changes = {
        "status": {Verdict: "unhealthy", ConsumerLag: "lagging", Incident: "opened"}.get(
            kind, "failing"
        ),
        "breaker_cause": "level",
        "failure": "store-lost",
        "remedy": "look",
    }
    known = {each: changes[each] for each in kind.__struct_fields__ if each in changes}
    return replace(event, **known)


@pytest.mark.parametrize(("begin", "end"), ENDS)
def test_the_subjects_of_an_end_are_consumed_and_searched(begin: Event, end: Event) -> None:
    """The notifier receives each end, and finds those that it handled before the beginning."""
    subject = event_subject(end)
    assert any(covers(each, subject) for each in NOTIFIER_ALERTS.filters)
    if not isinstance(end, PoolRemoved):
        assert any(covers(each, subject) for each in ending_subjects(begin))


def covers(filter_: str, subject: str) -> bool:
    """Return whether a subject falls under a filter."""
    wanted, given = filter_.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, given = wanted[:-1], given[: len(wanted) - 1]
    return len(wanted) == len(given) and all(
        one in ("*", other) for one, other in zip(wanted, given, strict=True)
    )


@pytest.mark.parametrize(
    ("begin", "end"), [each for each in ENDS if not isinstance(each.values[1], PoolRemoved)]
)
def test_what_is_over_is_not_sent(begin: Event, end: Event) -> None:
    """An alert that was over before it could be sent disturbs operators with neither message.

    The alert was held, or the notifier was away.
    """

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            first, second = await desk.publish(begin, end)
            await desk.handle(second, first)
            await asyncio.sleep(10)
            sent = [(key, over) for key, over in channel.sent if key == key_of(begin)]
            assert sent == []

    run(work)


@pytest.mark.parametrize(("begin", "end"), ENDS)
def test_the_end_of_what_was_sent_is_sent_once(begin: Event, end: Event) -> None:
    """The end has the same key, whichever replica receives it; and nothing of it is kept."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            await desk.occur(begin)
            await asyncio.sleep(10)
            assert channel.sent == [(key_of(begin), False)]
            received = await desk.publish(end)
            desk.intake = AlertIntake(desk.bus)
            await desk.handle(*received, *received)
            await asyncio.sleep(100)
            sent = [(key, over) for key, over in channel.sent if key == key_of(begin)]
            assert sent == [(key_of(begin), False), (key_of(begin), True)]
            assert key_of(begin) not in {each.alert for each in await desk.records()}

    run(work)


def key_of(event: Event) -> str:
    """Return the key of an event's alert."""
    alert = alert_of(event)
    assert alert is not None
    return alert.key


def test_an_alert_ends_when_nothing_more_is_heard_of_it() -> None:
    """An hour after the last failed attempt; meanwhile each attempt is no alert of its own."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            for number in range(6):
                event = replace(FAILED, id=f"f-{number}", time=desk.clock.now())
                await desk.occur(event)
                await asyncio.sleep(500)
            assert channel.sent == [(key_of(FAILED), False)]
            await asyncio.sleep(3000)
            assert len(channel.sent) == 1
            await asyncio.sleep(400)
            assert channel.sent[1:] == [(key_of(FAILED), True)]
            assert "Nothing more was reported for 1h." in channel.alerts[1].text

    run(work)


def test_a_replacement_ends_every_alert_about_the_old_node() -> None:
    """Each under its own key; a replacement that nothing was alerted about is no alert."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            other = replace(REPLACED, id="r-2", old_node="n2", saga="replace-n2-1")
            for event in (LOST, UNHEALTHY, replace(GONE, saga="replace-n1-1"), REPLACED, other):
                await desk.occur(event)
                await asyncio.sleep(10)
            keys = ["lost/training/n1", "health/training/n1"]
            assert channel.sent[:2] == [(key, False) for key in keys]
            assert sorted(channel.sent[2:]) == sorted((key, True) for key in keys)
            assert {each.title for each in channel.alerts[2:]} == {"training/n1: replaced"}

    run(work)


def test_the_end_of_another_incident_is_not_the_end_of_this_one() -> None:
    """Both are on one subject, of which the last message says nothing of the first."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            received = await desk.publish(
                INCIDENT,
                replace(INCIDENT, id="i-2", status="closed"),
                replace(INCIDENT, id="j-1", incident="xid-48-1"),
            )
            await desk.handle(*received[1:], received[0])
            await asyncio.sleep(10)
            assert channel.sent == [("incident/training/xid-48-1", False)]

    run(work)


def test_the_alerts_of_a_stream_that_was_created_again_end() -> None:
    """Sequences begin again; an end is recognised by its time."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            await desk.occur(
                *(replace(OPENED, id=f"o-{each}", pool=f"p{each}") for each in range(9))
            )
            await desk.occur(UNHEALTHY)
            await asyncio.sleep(100)
            await desk.bus.admin(f"STREAM.DELETE.{EVENTS.name}", {})
            await set_up(desk.bus, desk.clock, replicas=1)
            await desk.occur(HEALTHY)
            await asyncio.sleep(10)
            assert channel.sent[-1] == ("health/training/n1", True)

    run(work)


@pytest.mark.parametrize("state", ["registered", "leaving", "terminated"])
def test_a_node_that_is_not_in_service_is_not_alerted_as_lost(state: Any) -> None:
    """The launch is being undone, or the node removed: its saga reports what goes wrong."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            record = NodeRecord(pool="training", node="n1", state=state)
            await desk.bus.put(NODES, node_key("training", "n1"), encode(record))
            await desk.occur(LOST)
            await asyncio.sleep(10)
            assert channel.sent == []

    run(work)


@pytest.mark.parametrize(
    ("event", "changes", "alerts"),
    [
        (UNHEALTHY, {"health_at": NOW}, 1),
        (UNHEALTHY, {"health_at": NOW + timedelta(seconds=1)}, 0),
        (UNHEALTHY, {"state": "terminated"}, 0),
        (LOST, {"liveness_at": NOW}, 1),
        (LOST, {"liveness_at": NOW + timedelta(seconds=1)}, 0),
    ],
    ids=["the last verdict", "judged since", "gone", "the last loss", "returned since"],
)
def test_what_is_published_again_late_alerts_about_the_present(
    event: Lost | Verdict, changes: dict[str, Any], alerts: int
) -> None:
    """An operator publishes an event, set aside before, again after its node has changed."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            record = NodeRecord(pool="training", node="n1", state="active")
            await desk.bus.put(
                NODES, node_key("training", "n1"), encode(replace(record, **changes))
            )
            await desk.occur(event)
            await asyncio.sleep(60)
            assert len(channel.sent) == alerts

    run(work)


@pytest.mark.parametrize(
    ("record", "lost", "later", "ends"),
    [
        (None, True, UNKNOWN_AFTER, True),
        (None, False, UNKNOWN_AFTER, True),  # an incident covers that it is lost
        (None, True, UNKNOWN_AFTER / 2, False),  # it may be adopted still
        ((NODES, NodeRecord(pool="training", node="n7", lost=True)), True, UNKNOWN_AFTER, False),
        ((HEALTH, HealthRecord(pool="training", node="n7")), False, UNKNOWN_AFTER, False),
        # Its end is lost, or is taken for an older event: EVENTS was rolled back.
        (
            (NODES, NodeRecord(pool="training", node="n7", state="terminated")),
            True,
            UNKNOWN_AFTER,
            True,
        ),
    ],
)
def test_alerts_about_a_silent_node_without_a_record_end(
    record: tuple[BucketSpec, NodeRecord | HealthRecord] | None,
    lost: bool,
    later: timedelta,
    ends: bool,
) -> None:
    """Others removed the machine before it was adopted: no event says that it is gone."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            node = {**NODE, "node": "n7"}
            await desk.occur(Verdict(id="unhealthy", status="unhealthy", action="replace", **node))
            if lost:
                await desk.occur(Lost(id="lost", **node))
            await asyncio.sleep(2 * HOLD_SECONDS)
            begun = {key for key, _ in channel.sent}
            assert len(begun) == 1 + lost
            if record is not None:
                await desk.bus.put(record[0], node_key("training", "n7"), encode(record[1]))
            at = max(each.at for each in await desk.intake._open.all())
            await desk.intake.end_without_event(at + later)
            await asyncio.sleep(5)
            assert {key for key, resolved in channel.sent if resolved} == (begun if ends else set())

    run(work)


@pytest.mark.parametrize(
    ("minutes", "lost", "ends"),
    [
        pytest.param(20, False, True, id="its successor joined"),
        pytest.param(20, True, False, id="its successor is lost too"),
        pytest.param(-20, False, False, id="it joined before"),
    ],
)
def test_the_alert_about_a_silent_machine_ends_by_another_of_its_name(
    minutes: int, lost: bool, ends: bool
) -> None:
    """Others reuse the name; POOLS was lost, and with it that a successor was awaited."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            await desk.occur(LOST)
            await asyncio.sleep(2 * HOLD_SECONDS)
            at = (await desk.intake._open.all())[0].at
            admitted_at = at + timedelta(minutes=minutes)
            node = NodeRecord(
                pool="training", node="n1", state="active", lost=lost, admitted_at=admitted_at
            )
            await desk.bus.put(NODES, node_key("training", "n1"), encode(node))
            await desk.intake.end_without_event(at + timedelta(minutes=25))
            await asyncio.sleep(5)
            sent = [resolved for _, resolved in channel.sent]
            assert sent == ([False, True] if ends else [False])

    run(work)


def test_flapping_nodes_are_summarised_and_every_alert_ends() -> None:
    """Twenty nodes, lost and returned four times: six alerts; the summary ends when all is well."""

    async def work() -> None:
        channel = RecordingChannel()
        async with alert_desk(channel) as desk:
            for round_ in range(4):
                for fact in (Lost, Returned):
                    for number in range(20):
                        node = {**NODE, "node": f"n{number}"}
                        await desk.occur(fact(id=f"{fact.__name__}-{number}-{round_}", **node))
                    await asyncio.sleep(5)
            begun = [key for key, resolved in channel.sent if not resolved]
            assert len(begun) == EACH_MAX + 1
            lost = NodeRecord(pool="training", node="n7", state="active", lost=True)
            for record, resolved in ((lost, False), (replace(lost, lost=False), True)):
                await desk.bus.put(NODES, node_key("training", "n7"), encode(record))
                await desk.intake.end_without_event(NOW + timedelta(seconds=2 * QUIET_SECONDS))
                await asyncio.sleep(5)
                assert ((begun[-1], True) in channel.sent) == resolved
            assert sorted(channel.sent) == sorted(
                [*((key, False) for key in begun), *((key, True) for key in begun)]
            )

    run(work)
