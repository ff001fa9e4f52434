"""What belongs into a node's evidence, and when its time out of service began and ended."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas import evidence_bundles as e
from schemas import node_events as n
from schemas import pool_events as p
from schemas import saga_log_entries as s
from schemas import subjects
from schemas.health_records import HealthRecord, RecordedFault
from schemas.messages import Message, encode
from schemas.node_records import NodeRecord
from schemas.saga_params import SagaParams
from services.bus.port import Stored
from services.metrics.evidence.evidence_content import around, bounded, bundle, capture
from services.metrics.evidence.node_history import Known
from services.metrics.evidence.outage_endings import ending, keeps, still_open
from services.metrics.evidence.outages import outages

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SAGA = "replace-n-1-1"
GPUS = tuple(n.GpuIdentity(index=i, uuid=f"GPU-{i}", serial=f"s{i}") for i in range(8))


def at(seconds: float) -> datetime:
    """A moment of the story."""
    return NOW + timedelta(seconds=seconds)


def of(what: type[Message], seconds: float, /, **more: Any) -> Message:
    """A fact about n-1."""
    about = {"pool": "a", "node": "n-1"} if issubclass(what, n.NodeEvent) else {}
    return what(id=more.pop("id", f"{what.__name__}-{seconds}"), time=at(seconds), **about, **more)


FAULT = of(
    n.Fault, -1, id="f", kind="xid", code=79, gpu_index=3, message="NVRM: Xid", source="kmsg"
)
SICK = of(n.Verdict, 0, status="unhealthy", fault="f", kind="xid", code=79, rule="r", policy="h")
WELL = of(n.Verdict, 20, status="healthy")
CASES = {
    "sick, then uncordoned": ([SICK, of(n.Uncordoned, 9)], [(0, 9, "xid-79")]),
    "cordoned first": (
        [of(n.Cordoned, 0), of(n.Verdict, 5, status="unhealthy", kind="thermal")],
        [(0, None, "thermal")],
    ),
    "lost, and gone": ([of(n.Lost, 0), of(n.Terminated, 7)], [(0, 7, "silence")]),
    "lost, and heard again": ([of(n.Lost, 0), of(n.Returned, 7)], []),
    "lost, then found sick": ([of(n.Lost, 0), of(n.Returned, 1), SICK], [(0, None, "xid-79")]),
    "by hand": ([of(n.Cordoned, 0), of(n.Uncordoned, 4)], [(0, 4, "operator-request")]),
    "degraded is in service": ([of(n.Verdict, 0, status="degraded", kind="ecc_sbe")], []),
    "degraded, then cordoned": (
        [of(n.Verdict, 0, status="degraded", kind="ecc_sbe"), of(n.Cordoned, 3)],
        [(3, None, "ecc_sbe")],
    ),
    "the cloud takes it": (
        [of(n.ProviderNotice, 0, notice="a"), of(n.Cordoned, 2), of(n.Terminated, 5)],
        [(2, 5, "preemption")],
    ),
    "the cloud takes it after all not": (
        [
            of(n.ProviderNotice, 0, notice="a"),
            of(n.ProviderNotice, 1, notice="a", withdrawn=True),
            of(n.Cordoned, 2),
        ],
        [(2, None, "operator-request")],
    ),
    "well by itself": ([SICK, WELL], []),
    "well, but cordoned": (
        [SICK, of(n.Cordoned, 1), WELL, of(n.Uncordoned, 30)],
        [(0, 30, "xid-79")],
    ),
    "twice": (
        [SICK, of(n.Uncordoned, 9), of(n.Lost, 50)],
        [(0, 9, "xid-79"), (50, None, "silence")],
    ),
    "no fault decided": (
        [of(n.Verdict, 0, status="unhealthy", rule="boot")],
        [(0, None, "boot")],
    ),
}


@pytest.mark.parametrize(("events", "expected"), CASES.values(), ids=CASES)
def test_an_outage_begins_with_the_first_trouble_and_ends_with_the_way_back(events, expected):
    """Whatever came first counts from, and the fault that decided is what it is counted under."""
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
    """Messages as the server would keep them."""
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


def saga(kind: str = "replace", spare: str = "") -> list[Message]:
    """A saga's log up to the new node's admission."""
    params = SagaParams(pool="a", node="n-1", new_node="n-2", promotes=spare)
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
    "replaced: until the new one is admitted": (
        [*saga(), GONE, REPLACED],
        REPLACED,
        "replaced",
        60,
    ),
    "replaced: until a spare took its place": (
        [*saga(spare="n-0"), PROMOTED, GONE, BY_SPARE],
        BY_SPARE,
        "replaced",
        5,
    ),
    "a spare took its place, and no new spare came": (
        [saga(spare="n-0")[0], PROMOTED, GONE, FAILED],
        FAILED,
        "replaced",
        5,
    ),
    "terminated: the new one is still to come": ([*saga(), GONE], GONE, None, 0),
    "nothing came in its place": ([*saga(), GONE, FAILED], FAILED, "removed", 90),
    "unwound before it was gone": ([*saga(), FAILED], FAILED, None, 0),
    "scaled down": ([*saga("scale-down"), GONE], GONE, "removed", 30),
    "reset": ([*saga("reset-gpu"), (well := of(n.Uncordoned, 12, saga=SAGA))], well, "reset", 12),
    "uncordoned": ([(back := of(n.Uncordoned, 12, saga="u"))], back, "uncordoned", 12),
}


@pytest.mark.parametrize(("more", "trigger", "outcome", "back"), ENDS.values(), ids=ENDS)
def test_a_sickness_ends_when_its_place_is_filled(more, trigger, outcome, back):
    """And is told of once, by the fact that says so."""
    known = Known(pool="a", node="n-1", story=stored(FAULT, SICK, *more))
    found = ending(known, trigger, trigger.time)
    assert outcome == (found.outcome if found else None)
    if found:
        assert (found.outage.since, found.restored_at) == (at(0), at(back))
        assert keeps(found)


def test_nothing_is_kept_of_what_was_by_hand_alone_unless_the_node_is_gone():
    """A cordon and uncordon by hand cost hours, but no vendor wants to read about it."""
    back = of(n.Uncordoned, 9)
    story = stored(of(n.Cordoned, 0), back)
    assert not keeps(ending(Known(pool="a", node="n-1", story=story), back, at(9)))
    replaced = ending(Known(pool="a", node="n-1", story=stored(REPLACED)), REPLACED, at(61))
    assert keeps(replaced)


def sample(seconds: float, number: int = 0) -> n.Telemetry:
    """A sample of n-1."""
    return n.Telemetry(
        id=f"t-{seconds}-{number}", time=at(seconds), pool="a", node="n-1", sequence=number
    )


def test_samples_around_the_fault_are_kept_and_bounded():
    """The nearest before and after it, each once, in order; those far away are left out."""
    many = [sample(second) for second in range(-2000, 2000)]
    kept, omitted = around(NOW, [*many, *many])
    assert [each.time for each in kept] == [at(second) for second in range(-119, 121)]
    assert omitted == 2 * int(e.AROUND_SECONDS) + 1 - len(kept)


def test_a_capture_keeps_what_was_captured_before_of_the_same_trouble():
    """Samples that the stream has dropped by now stay; those of an older trouble go."""
    sick = Known(pool="a", node="n-1", story=stored(FAULT, SICK), samples=(sample(-5), sample(1)))
    first = capture(sick, None, at(2))
    later = Known(pool="a", node="n-1", story=sick.story, samples=(sample(90),))
    second = capture(later, first, at(100))
    assert [each.time for each in second.samples] == [at(-5), at(1), at(90)]
    assert (first.moment, second.moment) == (at(-1), at(-1))
    again = of(n.Verdict, 90_000, status="unhealthy")
    much_later = Known(pool="a", node="n-1", story=stored(SICK, of(n.Uncordoned, 9), again))
    assert capture(much_later, second, at(90_001)).samples == ()


def test_a_bundle_says_all_of_it_when_the_buckets_are_empty():
    """Serials, driver, what was judged: from the capture, the node's own words and the log."""
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
    story = stored(registered, FAULT, SICK, *saga(), GONE, REPLACED)
    known = Known(pool="a", node="n-1", story=story, samples=(sample(3),))
    made = bundle(known, kept, ending(known, REPLACED, at(61)))
    assert made == bundle(known, kept, ending(known, REPLACED, at(61)))
    assert [line.line for line in made.kernel_lines] == ["NVRM: Xid"]
    assert [(each.result, each.rule) for each in made.faults] == [("unhealthy", "r")]
    assert [each.time for each in made.samples] == [at(-5), at(3)]
    assert [gpu.serial for gpu in made.gpus] == [gpu.serial for gpu in GPUS]
    assert (made.hostname, made.driver_version, made.verdict) == ("h", "550", SICK)
    assert [each.since_ms for each in made.timeline[:3]] == [-100_000.0, -1000.0, 0.0]
    assert len(made.timeline) == len(story)
    assert (made.fault_signature, made.lost_gpu_hours) == ("xid-79", round(60 * 8 / 3600, 6))


def test_the_verdict_says_what_was_made_of_its_fault_where_no_note_does():
    """It is told before the health record is written, which a capture may therefore miss."""
    known = Known(pool="a", node="n-1", story=stored(FAULT, SICK))
    (fault,) = bundle(known, None, still_open(known)).faults
    assert (fault.result, fault.rule) == ("unhealthy", "r")


def test_a_list_keeps_its_beginning_and_its_end_within_both_bounds():
    """By number and by bytes; what is left out is counted."""
    assert bounded(list(range(10)), 4, lambda _: b"") == ((0, 1, 8, 9), 6)
    kept, omitted = bounded([0, 1, 2, 3, 4], 5, lambda _: bytes(e.PART_BYTES_MAX // 3))
    assert (kept, omitted) == ((0, 1, 4), 2)


def test_what_cannot_be_read_stands_in_the_timeline_all_the_same():
    """Garbage on a subject of the node's stops nothing."""
    subject = subjects.node_event("a", "n-1", "fault")
    garbage = Stored(subject, b"\xff{", 99, at(1))
    known = Known(pool="a", node="n-1", story=(*stored(SICK), garbage))
    made = bundle(known, None, still_open(known))
    assert [each.message.get("unreadable") for each in made.timeline] == [None, "\ufffd{"]
