"""The content of a node's evidence, and when its outages began and ended."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas import evidence_bundles as e
from schemas import node_events as n
from schemas import pool_events as p
from schemas import saga_log_entries as s
from schemas import subjects
from schemas.fault_signature import RACK
from schemas.health_records import HealthRecord, RecordedFault
from schemas.messages import Message, encode
from schemas.node_records import NodeRecord
from schemas.saga_params import SagaParams
from services.bus.port import Stored
from services.metrics.evidence.evidence_content import bundle, capture, limit_items, samples_around
from services.metrics.evidence.outages import (
    NodeHistory,
    is_stored,
    open_ending,
    outage_ending,
    outages,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SAGA = "replace-n-1-1"
GPUS = tuple(n.GpuIdentity(index=i, uuid=f"GPU-{i}", serial=f"s{i}") for i in range(8))


def at(seconds: float) -> datetime:
    """Return a time relative to NOW."""
    return NOW + timedelta(seconds=seconds)


def of(what: type[Message], seconds: float, /, **more: Any) -> Message:
    """Return an event, about n-1 if it is of a node."""
    about = {"pool": "a", "node": "n-1"} if issubclass(what, n.NodeEvent) else {}
    return what(id=more.pop("id", f"{what.__name__}-{seconds}"), time=at(seconds), **about, **more)


FAULT = of(
    n.Fault, -1, id="f", kind="xid", code=79, gpu_index=3, message="NVRM: Xid", source="kmsg"
)
UNHEALTHY = of(
    n.Verdict, 0, status="unhealthy", fault="f", kind="xid", code=79, rule="r", policy="h"
)
HEALTHY = of(n.Verdict, 20, status="healthy")
CASES = {
    "unhealthy, then uncordoned": ([UNHEALTHY, of(n.Uncordoned, 9)], [(0, 9, "xid-79")]),
    "cordoned first": (
        [of(n.Cordoned, 0), of(n.Verdict, 5, status="unhealthy", kind="thermal")],
        [(0, None, "thermal")],
    ),
    "lost, then terminated": ([of(n.Lost, 0), of(n.Terminated, 7)], [(0, 7, "silence")]),
    "lost, then returned": ([of(n.Lost, 0), of(n.Returned, 7)], []),
    "lost, then unhealthy": ([of(n.Lost, 0), of(n.Returned, 1), UNHEALTHY], [(0, None, "xid-79")]),
    "by hand": ([of(n.Cordoned, 0), of(n.Uncordoned, 4)], [(0, 4, "operator-request")]),
    "by hand, and then silent": (
        [of(n.Cordoned, 0), of(n.Lost, 5), of(n.Terminated, 9)],
        [(0, 9, "operator-request")],
    ),
    "by hand, and then silent and back": (
        [of(n.Cordoned, 0), of(n.Lost, 5), of(n.Returned, 7), of(n.Uncordoned, 9)],
        [(0, 9, "operator-request")],
    ),
    "silent, and then cordoned": ([of(n.Lost, 0), of(n.Cordoned, 5)], [(0, None, "silence")]),
    "degraded is in service": ([of(n.Verdict, 0, status="degraded", kind="ecc_sbe")], []),
    "degraded, then cordoned": (
        [of(n.Verdict, 0, status="degraded", kind="ecc_sbe"), of(n.Cordoned, 3)],
        [(3, None, "ecc_sbe")],
    ),
    "preempted": (
        [of(n.ProviderNotice, 0, notice="a"), of(n.Cordoned, 2), of(n.Terminated, 5)],
        [(2, 5, "preemption")],
    ),
    "preemption withdrawn": (
        [
            of(n.ProviderNotice, 0, notice="a"),
            of(n.ProviderNotice, 1, notice="a", withdrawn=True),
            of(n.Cordoned, 2),
        ],
        [(2, None, "operator-request")],
    ),
    "recovered": ([UNHEALTHY, HEALTHY], []),
    "recovered, but cordoned": (
        [UNHEALTHY, of(n.Cordoned, 1), HEALTHY, of(n.Uncordoned, 30)],
        [(0, 30, "xid-79")],
    ),
    "twice": (
        [UNHEALTHY, of(n.Uncordoned, 9), of(n.Lost, 50)],
        [(0, 9, "xid-79"), (50, None, "silence")],
    ),
    "unhealthy without a fault": (
        [of(n.Verdict, 0, status="unhealthy", rule="boot")],
        [(0, None, "boot")],
    ),
}


@pytest.mark.parametrize(("events", "expected"), CASES.values(), ids=CASES)
def test_an_outage_begins_with_its_first_event_and_ends_with_recovery(events, expected):
    """An outage starts at the first event; the decisive fault gives its signature."""
    found = outages((event.time, event) for event in [FAULT, *events])
    seconds = [
        (
            (each.since - NOW).total_seconds(),
            (each.ended_at - NOW).total_seconds() if each.ended_at else None,
            each.fault_signature,
        )
        for each in found
    ]
    assert expected == seconds


def stored(*messages: Message) -> tuple[Stored, ...]:
    """Messages as the server stores them."""
    found = []
    for number, message in enumerate(messages):
        match message:
            case n.NodeEvent():
                subject = subjects.node_event("a", message.node, n.FACTS[type(message)])
            case p.PoolEvent():
                subject = subjects.pool_event("a", p.FACTS[type(message)])
            case s.SagaEntry():
                step = getattr(message, "step", "saga")
                subject = subjects.saga_entry(message.saga, step, s.STATUSES[type(message)])
        found.append(Stored(subject, encode(message), number + 1, message.time))
    return tuple(found)


def saga(kind: str = "replace", spare: str = "", signature: str = "") -> list[Message]:
    """Return a saga's log up to the new node's admission."""
    params = SagaParams(
        pool="a", node="n-1", new_node="n-2", promotes=spare, fault_signature=signature
    )
    return [
        of(s.SagaStarted, 1, saga=SAGA, kind=kind, params=params),
        of(s.StepSucceeded, 60, saga=SAGA, step="admit"),
    ]


GONE = of(n.Terminated, 30, id=f"terminated-{SAGA}", saga=SAGA)
REPLACED = of(p.NodeReplaced, 61, pool="a", old_node="n-1", new_node="n-2", saga=SAGA)
FAILED = of(p.SagaFailed, 90, pool="a", saga=SAGA, step="provision", reason="x", node="n-1")
PROMOTED = of(s.StepSucceeded, 5, saga=SAGA, step="promote")
BY_SPARE = of(
    p.NodeReplaced, 61, pool="a", old_node="n-1", new_node="n-2", promoted="n-0", saga=SAGA
)
ENDS = {
    "replaced: until the new node is admitted": (
        [*saga(), GONE, REPLACED],
        REPLACED,
        "replaced",
        60,
    ),
    "replaced: until a spare is promoted": (
        [*saga(spare="n-0"), PROMOTED, GONE, BY_SPARE],
        BY_SPARE,
        "replaced",
        5,
    ),
    "replaced by a spare, and no new spare launched": (
        [saga(spare="n-0")[0], PROMOTED, GONE, FAILED],
        FAILED,
        "replaced",
        5,
    ),
    "terminated: the new node is not in service yet": ([*saga(), GONE], GONE, None, 0),
    "terminated and not replaced": ([*saga(), GONE, FAILED], FAILED, "removed", 90),
    "unwound before its termination": ([*saga(), FAILED], FAILED, None, 0),
    "scaled down": ([*saga("scale-down"), GONE], GONE, "removed", 30),
    "left with its rack": ([saga(signature=RACK)[0], GONE], GONE, "removed", 30),
    "reset": ([*saga("reset-gpu"), (reset := of(n.Uncordoned, 12, saga=SAGA))], reset, "reset", 12),
    "uncordoned": ([(back := of(n.Uncordoned, 12, saga="u"))], back, "uncordoned", 12),
}


@pytest.mark.parametrize(("more", "trigger", "outcome", "back"), ENDS.values(), ids=ENDS)
def test_an_outage_ends_when_a_node_is_in_service_again(more, trigger, outcome, back):
    """Exactly one event ends it."""
    history = NodeHistory(pool="a", node="n-1", stored=stored(FAULT, UNHEALTHY, *more))
    found = outage_ending(history, trigger, trigger.time)
    assert outcome == (found.outcome if found else None)
    if found:
        assert (found.outage.since, found.restored_at) == (at(0), at(back))
        assert is_stored(found)


def test_the_removal_of_a_healthy_node_is_no_outage():
    """`navarch down` and a smaller pool cost nothing; an unhealthy node that they remove does."""
    rack = [saga(signature=RACK)[0], of(n.Cordoned, 2), GONE]
    story = [*saga("scale-down"), of(n.Cordoned, 2), GONE]
    for removal in (rack, story):
        healthy = NodeHistory(pool="a", node="n-1", stored=stored(*removal))
        assert outage_ending(healthy, GONE, GONE.time) is None
    silent = NodeHistory(pool="a", node="n-1", stored=stored(of(n.Lost, 0), *story))
    assert outage_ending(silent, GONE, GONE.time) is not None


def test_no_evidence_is_stored_of_a_manual_cordon_unless_the_node_was_replaced():
    """A manual cordon and uncordon cost hours, but there is no fault to report to the vendor."""
    back = of(n.Uncordoned, 9)
    story = stored(of(n.Cordoned, 0), back)
    assert not is_stored(
        outage_ending(NodeHistory(pool="a", node="n-1", stored=story), back, at(9))
    )
    replaced = outage_ending(
        NodeHistory(pool="a", node="n-1", stored=stored(REPLACED)), REPLACED, at(61)
    )
    assert is_stored(replaced)


def sample(seconds: float, number: int = 0) -> n.Telemetry:
    """Return a sample of n-1."""
    return n.Telemetry(
        id=f"t-{seconds}-{number}", time=at(seconds), pool="a", node="n-1", sequence=number
    )


def test_samples_around_the_fault_are_kept_and_bounded():
    """The nearest before and after it, each once, in order; distant ones are omitted."""
    many = [sample(second) for second in range(-2000, 2000)]
    kept, omitted = samples_around(NOW, [*many, *many])
    assert [each.time for each in kept] == [at(second) for second in range(-119, 121)]
    assert omitted == 2 * int(e.AROUND_SECONDS) + 1 - len(kept)


def test_a_capture_includes_the_earlier_capture_of_the_same_outage():
    """Samples that the stream no longer has are kept; those of an older outage are dropped."""
    unhealthy = NodeHistory(
        pool="a", node="n-1", stored=stored(FAULT, UNHEALTHY), samples=(sample(-5), sample(1))
    )
    first = capture(unhealthy, None, at(2))
    later = NodeHistory(pool="a", node="n-1", stored=unhealthy.stored, samples=(sample(90),))
    second = capture(later, first, at(100))
    assert [each.time for each in second.samples] == [at(-5), at(1), at(90)]
    assert (first.moment, second.moment) == (at(-1), at(-1))
    again = of(n.Verdict, 90_000, status="unhealthy")
    much_later = NodeHistory(
        pool="a", node="n-1", stored=stored(UNHEALTHY, of(n.Uncordoned, 9), again)
    )
    assert capture(much_later, second, at(90_001)).samples == ()


def test_a_bundle_is_complete_when_the_buckets_are_empty():
    """Serials, driver and results come from the capture, the node's events and the saga log."""
    registered = of(n.Registered, -100, instance="n-1", gpus=GPUS, driver_version="550")
    note = RecordedFault(
        id="f", time=NOW, kind="xid", result="unhealthy", action="replace", rule="r"
    )
    kept = e.EvidenceCapture(
        pool="a",
        node="n-1",
        captured_at=at(0),
        moment=at(-1),
        record=NodeRecord(pool="a", node="n-1", hostname="h", driver_version="550", gpus=GPUS[:7]),
        health=HealthRecord(pool="a", node="n-1", recent=(note,)),
        samples=(sample(-5),),
    )
    story = stored(registered, FAULT, UNHEALTHY, *saga(), GONE, REPLACED)
    history = NodeHistory(pool="a", node="n-1", stored=story, samples=(sample(3),))
    made = bundle(history, kept, outage_ending(history, REPLACED, at(61)))
    assert made == bundle(history, kept, outage_ending(history, REPLACED, at(61)))
    assert [line.line for line in made.kernel_lines] == ["NVRM: Xid"]
    assert [(each.result, each.rule) for each in made.faults] == [("unhealthy", "r")]
    assert [each.time for each in made.samples] == [at(-5), at(3)]
    assert [gpu.serial for gpu in made.gpus] == [gpu.serial for gpu in GPUS]
    assert (made.hostname, made.driver_version, made.verdict) == ("h", "550", UNHEALTHY)
    assert [each.since_ms for each in made.timeline[:3]] == [-100_000.0, -1000.0, 0.0]
    assert len(made.timeline) == len(story)
    assert (made.fault_signature, made.lost_gpu_hours) == ("xid-79", round(60 * 8 / 3600, 6))


def test_the_verdict_gives_a_faults_result_that_the_health_record_lacks():
    """A verdict is published before the health record, which a capture may therefore miss."""
    history = NodeHistory(pool="a", node="n-1", stored=stored(FAULT, UNHEALTHY))
    (fault,) = bundle(history, None, open_ending(history)).faults
    assert (fault.result, fault.rule) == ("unhealthy", "r")


def test_a_list_keeps_its_beginning_and_its_end_within_both_limits():
    """A list is limited by number and by bytes; omitted items are counted."""
    assert limit_items(list(range(10)), 4, lambda _: b"") == ((0, 1, 8, 9), 6)
    kept, omitted = limit_items([0, 1, 2, 3, 4], 5, lambda _: bytes(e.PART_BYTES_MAX // 3))
    assert (kept, omitted) == ((0, 1, 4), 2)


def test_an_unreadable_message_is_in_the_timeline():
    """Garbage on one of the node's subjects does not prevent a bundle."""
    subject = subjects.node_event("a", "n-1", "fault")
    garbage = Stored(subject, b"\xff{", 99, at(1))
    history = NodeHistory(pool="a", node="n-1", stored=(*stored(UNHEALTHY), garbage))
    made = bundle(history, None, open_ending(history))
    assert [each.message.get("unreadable") for each in made.timeline] == [None, "\ufffd{"]
