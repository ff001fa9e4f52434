"""Evidence and the cost of repairs on a real bus: once each, at whatever write a replica dies."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from schemas import evidence_bundles as e
from schemas import node_events as n
from schemas import pool_events as p
from schemas import subjects
from schemas.evidence_bundles import TOTALS_KEY, RepairTotals
from schemas.messages import Message, encode
from schemas.metric_catalogue import OTHER
from schemas.node_events import Repaired, Telemetry
from schemas.node_records import NodeRecord, node_key
from schemas.saga_params import LaunchSpec
from schemas.settings import Settings
from schemas.topology import EVENTS, EVIDENCE, METRICS_EVIDENCE, NODES, REPAIRS
from services.metrics.evidence import stored_evidence
from services.metrics.evidence.evidence_collector import EvidenceCollector
from services.metrics.evidence.repair_sums import BUCKETS_SECONDS, SERIES_MAX, add_repair
from services.metrics.evidence.repair_totals import RepairCollector
from services.metrics.service import build
from services.primitives.clock import SystemClock
from services.primitives.errors import UnreadableRecord
from services.runtime.consumer_loop import Received
from services.runtime.failure_register import FailureRegister
from tests.support.inprocess import Running, eventually
from tests.support.settling import settled

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SAGA = "replace-n-1-1"
REPAIRED = subjects.node_event("a", "n-1", "repaired")


def repaired(number: int, seconds: float = 60, fault_signature: str = "xid-79") -> Repaired:
    """Return a repair of an eight-GPU node."""
    return Repaired(
        id=f"repaired-{number}",
        time=NOW,
        pool="a",
        node=f"n-{number}",
        outcome="replaced",
        fault_signature=fault_signature,
        unhealthy_at=NOW,
        restored_at=NOW + timedelta(seconds=seconds),
        gpu_count=8,
        lost_gpu_hours=seconds * 8 / 3600,
    )


def test_a_redelivered_event_is_added_once():
    """The event's sequence in the stream decides whether it was added."""
    once = add_repair(RepairTotals(), repaired(1), 7)
    assert add_repair(once, repaired(1), 7) is once
    assert add_repair(once, repaired(2), 3) is once
    (count,) = add_repair(once, repaired(2, seconds=1e9), 9).counts
    assert (count.buckets[BUCKETS_SECONDS.index(60.0)], count.buckets[-1]) == (1, 1)
    assert count.gpu_seconds == pytest.approx((60 + 1e9) * 8)


def test_the_number_of_series_is_bounded():
    """Arbitrary codes do not grow the record without bound."""
    totals = RepairTotals()
    for code in range(SERIES_MAX + 5):
        totals = add_repair(totals, repaired(1, fault_signature=f"xid-{code}"), code + 1)
    assert len(totals.counts) == SERIES_MAX + 1
    assert [sum(each.buckets) for each in totals.counts if each.fault_signature == OTHER] == [5]


async def publish(bus, *events: Message) -> None:
    """Publish events as their services do."""
    for event in events:
        if isinstance(event, n.NodeEvent):
            subject = subjects.node_event(event.pool, event.node, n.FACTS[type(event)])
        else:
            assert isinstance(event, p.PoolEvent)
            subject = subjects.pool_event(event.pool, p.FACTS[type(event)])
        await bus.publish(subject, encode(event), msg_id=event.id)


def collector(bus) -> RepairCollector:
    """Return the collector of one replica."""
    return RepairCollector(bus, SystemClock(), FailureRegister(CollectorRegistry()))


def counted(totals: RepairCollector) -> tuple[int, float]:
    """The number of repairs that a replica shows, and their GPU-hours."""
    found = totals._known.counts
    return sum(sum(each.buckets) for each in found), sum(each.gpu_seconds for each in found) / 3600


async def test_the_totals_survive_a_restart(bus):
    """Two replicas at once count each event once; a third that starts later shows the same."""
    both = [collector(bus), collector(bus)]
    running = [asyncio.ensure_future(each.run()) for each in both]
    await publish(bus, *(repaired(number) for number in range(20)))

    async def all_counted() -> bool:
        return [counted(each)[0] for each in both] == [20, 20]

    await eventually(all_counted)
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)

    # The events expire; their totals stay.
    await bus.purge(EVENTS.name, subjects.node_event_wildcard("repaired"))
    third = collector(bus)
    later = asyncio.ensure_future(third.run())
    await publish(bus, repaired(20))

    async def goes_on() -> bool:
        return counted(third)[0] == 21

    await eventually(goes_on)
    later.cancel()
    await asyncio.gather(later, return_exceptions=True)
    assert counted(third)[1] == pytest.approx(21 * 60 * 8 / 3600)


@pytest.mark.parametrize("garbage", [b"x", b"[]", b'{"sequence": "1"}', b'{"counts": [5]}', b""])
async def test_unreadable_totals_are_reported_and_the_service_goes_on(bus, garbage):
    """Totals may be unreadable from the start or later.

    Once the record is removed, every stored repair is counted.
    """
    failures = FailureRegister(CollectorRegistry())
    totals = RepairCollector(bus, SystemClock(), failures)
    if garbage:
        await bus.put(REPAIRS, TOTALS_KEY, garbage)
    running = asyncio.ensure_future(totals.run())
    if not garbage:
        await publish(bus, repaired(0))

        async def first() -> bool:
            return counted(totals)[0] == 1

        await eventually(first)
        await bus.put(REPAIRS, TOTALS_KEY, b"garbage")
    await publish(bus, repaired(1), repaired(2))

    async def reported() -> bool:
        return [each.about for each in failures.current] == ["REPAIRS totals"]

    await eventually(reported)
    assert not running.done()
    assert "nats kv del REPAIRS totals" in failures.current[0].remedy
    await bus.delete(REPAIRS, TOTALS_KEY)

    async def all_counted() -> bool:
        return counted(totals)[0] == (2 if garbage else 3) and not failures.current

    await eventually(all_counted)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# --- the collector -------------------------------------------------------------------------------

ABOUT = {"time": NOW, "pool": "a", "node": "n-1"}
FAULT = n.Fault(id="f-1", **ABOUT, kind="xid", code=79, message="NVRM: Xid", source="kmsg")
UNHEALTHY = n.Verdict(id="v-1", **ABOUT, status="unhealthy", fault="f-1", kind="xid", code=79)
BACK = n.Uncordoned(id="uncordoned-u-1", **ABOUT, saga="u-1")


async def store_node(bus) -> None:
    """Store a node's record and two samples."""
    launch = LaunchSpec(fleet="f", provider="fake", instance_type="t", gpu_count=8)
    record = NodeRecord(pool="a", node="n-1", state="active", launch=launch, hostname="h-1")
    await bus.put(NODES, node_key("a", "n-1"), encode(record))
    now = datetime.now(UTC)
    for number in range(2):
        sample = Telemetry(id=f"t-{number}", time=now, pool="a", node="n-1", sequence=number)
        await bus.publish(subjects.telemetry("a", "n-1"), encode(sample))


async def ids(bus) -> list[str]:
    """Return the ID of every published `repaired`."""
    found = [n.node_codec.decode(each.data) for each in await bus.read(EVENTS.name, REPAIRED)]
    return [each.id for each in found if isinstance(each, Repaired)]


async def test_evidence_is_stored_and_published_once(bus, server):
    """Captured at the verdict, while the samples exist; bundled after they expired."""
    await store_node(bus)
    async with Running(server.url, "metrics", build, Settings()):
        await publish(bus, FAULT, UNHEALTHY)
        await settled(bus, EVENTS.name, METRICS_EVIDENCE.name)
        await bus.purge("TELEMETRY", subjects.telemetry("a", "n-1"))
        await bus.delete(NODES, node_key("a", "n-1"))
        await publish(bus, BACK)
        await settled(bus, EVENTS.name, METRICS_EVIDENCE.name)
    kept = await stored_evidence.stored_bundle(bus, e.bundle_name("a", "n-1", "u-1"))
    assert kept is not None
    assert (len(kept.samples), kept.hostname, kept.gpu_count) == (2, "h-1", 8)
    assert [each.line for each in kept.kernel_lines] == ["NVRM: Xid"]
    assert await ids(bus) == ["repaired-u-1"]


class Killed(Exception):  # noqa: N818
    """The process was killed."""


class Dying:
    """A bus whose process dies before or after its n-th write."""

    def __init__(self, bus, calls: int, *, after: bool) -> None:
        self._bus, self._left, self._after = bus, calls, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._bus, name)
        if name not in ("put_object", "append", "publish"):
            return found

        async def call(*args: Any, **more: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Killed
            result = await found(*args, **more)
            if self._left == 0:
                raise Killed
            return result

        return call


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("calls", [1, 2])
async def test_killed_at_any_write_it_is_still_one_bundle_and_one_event(bus, calls, after):
    """The bundle first, then the event: a redelivery skips or performs each."""
    await store_node(bus)
    await publish(bus, FAULT, UNHEALTHY)
    subject = subjects.node_event("a", "n-1", "uncordoned")
    await publish(bus, BACK)
    (stored,) = await bus.read(EVENTS.name, subject)
    received = Received(BACK, stored)
    with pytest.raises(Killed):
        await EvidenceCollector(Dying(bus, calls, after=after), SystemClock()).handle(received)
    first = await stored_evidence.stored_bundle(bus, e.bundle_name("a", "n-1", "u-1"))
    for _ in range(2):
        await EvidenceCollector(bus, SystemClock()).handle(received)
    kept = await stored_evidence.stored_bundle(bus, e.bundle_name("a", "n-1", "u-1"))
    assert kept is not None
    assert first in (None, kept)
    assert await ids(bus) == ["repaired-u-1"]
    assert [each.name for each in await bus.objects(EVIDENCE)] == ["a.n-1.u-1"]


@pytest.mark.parametrize("garbage", [b"", b"x", b"[]", b'{"pool": 1}'])
async def test_unreadable_evidence_delays_nothing(bus, garbage):
    """A capture is written again; a bundle stays as it is, and the repair is published."""
    await store_node(bus)
    capture, bundle = e.capture_name("a", "n-1"), e.bundle_name("a", "n-1", "u-1")
    for name in (capture, bundle):
        await bus.put_object(EVIDENCE, name, garbage, metadata={}, revision=0)
    await publish(bus, FAULT, UNHEALTHY, BACK)
    collector = EvidenceCollector(bus, SystemClock())
    for event in (UNHEALTHY, BACK):
        fact = subjects.node_event("a", "n-1", n.FACTS[type(event)])
        (stored,) = await bus.read(EVENTS.name, fact)
        await collector.handle(Received(event, stored))
    assert await ids(bus) == ["repaired-u-1"]
    kept, _ = await stored_evidence.stored_capture(bus, "a", "n-1")
    assert kept is not None
    with pytest.raises(UnreadableRecord, match="EVIDENCE"):
        await stored_evidence.stored_bundle(bus, bundle)


async def test_a_node_that_recovered_without_remediation_is_not_listed_as_open(bus):
    """The capture says `recovered`; no event is published, because nothing was repaired."""
    await store_node(bus)
    collector = EvidenceCollector(bus, SystemClock())
    lost, back = n.Lost(id="l-1", **ABOUT), n.Returned(id="r-1", **ABOUT)
    seen = []
    for event in (lost, back):
        await publish(bus, event)
        (stored,) = await bus.read(
            EVENTS.name, subjects.node_event("a", "n-1", n.FACTS[type(event)])
        )
        await collector.handle(Received(event, stored))
        (info,) = await bus.objects(EVIDENCE)
        seen.append((info.name, info.metadata["outcome"], info.metadata["fault_signature"]))
    name = e.capture_name("a", "n-1")
    assert seen == [(name, "open", "silence"), (name, "recovered", "silence")]
    assert await ids(bus) == []


OPENED = p.SagaOpened(id="o-1", time=NOW, pool="a", saga=SAGA, kind="replace", node="n-1")
ENDS = {
    "replaced": p.NodeReplaced(
        id="r-1", time=NOW, pool="a", old_node="n-1", new_node="n-2", saga=SAGA
    ),
    "recovered": p.SagaCancelled(
        id="c-1", time=NOW, pool="a", saga=SAGA, step="drain", reason="no", node="n-1"
    ),
}


@pytest.mark.parametrize(("outcome", "end"), ENDS.items())
async def test_a_healthy_node_replaced_by_request_is_not_listed_as_open(bus, outcome, end):
    """The capture from the saga's start gets the outcome, also if the saga is cancelled."""
    await store_node(bus)
    collector = EvidenceCollector(bus, SystemClock())
    for event in (OPENED, end):
        await publish(bus, event)
        (stored,) = await bus.read(EVENTS.name, subjects.pool_event("a", p.FACTS[type(event)]))
        await collector.handle(Received(event, stored))
    (capture,) = [each for each in await bus.objects(EVIDENCE) if "capture" in each.name]
    assert capture.metadata["outcome"] == outcome
