"""Garbage messages, and the subjects of every stream to publish them on."""

from collections.abc import Iterable

from schemas import fleet_events, node_events, pool_events, subjects
from schemas.dead_letters import DeadLetter
from schemas.messages import message_type
from schemas.operations import REQUESTS
from schemas.saga_log_entries import STATUSES, StepStarted, TimerDue
from schemas.stream_specs import MESSAGE_BYTES_MAX, DurableSpec
from schemas.topology import DURABLES, EVENTS, INTAKE, STREAMS

POOL = "garbage"
DEPTH = 100_000
UNKNOWN = "unknown type"
SHAPES: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"{garbage",
    "no object": b"[1, 2, 3]",
    "no type": b'{"id": "a", "time": "2026-11-21T01:35:42Z"}',
    "type is no string": b'{"type": {"a": 1}}',
    "not UTF-8": b'{"type": "\xff\xfe\xc3\x28"}',
    "1 MB": b"\x00" * MESSAGE_BYTES_MAX,
    "deep": b"[" * DEPTH,
    "deep type": b'{"type": ' + b'{"a":' * DEPTH,
    UNKNOWN: b'{"type": "io.navarch.unknown.event.v1.nothing", "id": "a", "time": "now"}',
}
"""Garbage on any subject."""

_EVENT_TYPES = {
    fact: kind for table in (node_events.FACTS, pool_events.FACTS) for kind, fact in table.items()
}
_OF_FAMILY = {
    "node": node_events.Fault,
    "pool": pool_events.Scaled,
    "fleet": fleet_events.ConsumerLag,
}
_STEPS = ("saga", "cordon", "drain", "terminate", "provision", "bootstrap", "register", "uncordon")


def payloads(subject: str) -> dict[str, bytes]:
    """All garbage for a subject: invalid anywhere, or its own message type made invalid."""
    tag = _type_of(subject).encode()
    known = b'{"type": "%b", "id": "a", "time": "2026-11-21T01:35:42Z"' % tag
    wrong = (
        b', "pool": 7, "node": [], "saga": {}, "step": 1, "stream": false, "kind": 3, "status": 1}'
    )
    return SHAPES | {
        "wrong types": known + wrong,
        "no content": b'{"type": "%b"}' % tag,
        "time is none": b'{"type": "%b", "id": "a", "time": "yesterday"}' % tag,
        "content not UTF-8": known + b', "pool": "\xff\xfe"}',
        "deep content": known + b', "extra": ' + b"[" * DEPTH + b"]" * DEPTH + b"}",
    }


def _type_of(subject: str) -> str:
    tokens = subject.split(".")
    match tokens[2:]:
        case ["node", _, _, "telemetry"]:
            return message_type(node_events.Telemetry)
        case [family, *_, fact] if matches(subject, (*EVENTS.subjects, *INTAKE.subjects)):
            return message_type(_EVENT_TYPES.get(fact, _OF_FAMILY[family]))
        case ["saga", _, step, status]:
            found = [kind for kind, word in STATUSES.items() if word == status] or [StepStarted]
            return message_type(found[0] if step == "saga" else found[-1])
        case ["timer", *_]:
            return message_type(TimerDue)
        case ["dead", *_]:
            return message_type(DeadLetter)
        case _:
            return message_type(StepStarted)


def targets(node: str, open_saga: str) -> tuple[str, ...]:
    """Subjects that streams capture: of a real node and an unknown one."""
    unknown = "replace-unknown-1"
    return (
        subjects.telemetry(POOL, node),
        subjects.telemetry("nowhere", "unknown"),
        *(subjects.node_event(POOL, node, fact) for fact in node_events.FACTS.values()),
        subjects.node_event(POOL, node, "nonsense"),
        subjects.node_event("nowhere", "unknown", "fault"),
        *(subjects.pool_event(POOL, fact) for fact in pool_events.FACTS.values()),
        subjects.pool_event("nowhere", "nonsense"),
        *(subjects.pool_request(POOL, verb) for verb in REQUESTS),
        subjects.pool_request(POOL, "nonsense"),
        subjects.pool_request("nowhere", "scale"),
        *(
            subjects.saga_entry(saga, step, status)
            for saga, steps in ((open_saga, _STEPS), (unknown, ("saga", "drain", "provision")))
            for step in steps
            for status in ("started", "succeeded", "undo-started")
        ),
        *(subjects.saga_entry(open_saga, "saga", each) for each in ("done", "unwinding", "stuck")),
        subjects.saga_entry(open_saga, "nonsense", "nonsense"),
        subjects.timer_schedule("pool-manager", "garbage"),
        subjects.timer_due("pool-manager", "garbage"),
        subjects.timer_due("health-monitor", "garbage"),
        subjects.timer_due("unknown", "garbage"),
        subjects.dead("EVENTS", "health-events"),
        # Subjects that no builder makes and a stream still captures.
        f"{subjects.ROOT}.pool.Not_A_Name.request.scale",
        f"{subjects.ROOT}.pool.{POOL}.request.scale.more",
        f"{subjects.ROOT}.pool.Not_A_Name.event.saga-failed",
        f"{subjects.ROOT}.node.Not_A_Name.$%&.event.fault",
        f"{subjects.ROOT}.node.{POOL}.{node}.event.fault.more",
        f"{subjects.ROOT}.saga.{open_saga}",
        f"{subjects.ROOT}.saga.{open_saga}.drain.started.more",
    )


def matches(subject: str, filters: Iterable[str]) -> bool:
    """Return whether a subject matches one of these wildcards, by the server's rules."""
    return any(_matches(subject.split("."), each.split(".")) for each in filters)


def _matches(subject: list[str], wildcard: list[str]) -> bool:
    if wildcard[-1] == ">":
        front = wildcard[:-1]
        return len(subject) > len(front) and _matches(subject[: len(front)], front or ["*"])
    return len(subject) == len(wildcard) and all(
        pattern in ("*", token) for token, pattern in zip(subject, wildcard, strict=True)
    )


def consumers_of(subject: str) -> list[DurableSpec]:
    """The durables that receive a message on this subject."""
    return [each for each in DURABLES if matches(subject, each.filters)]


def uncovered(published: Iterable[str]) -> list[str]:
    """A subject for each wildcard of a stream or durable that none of these matches."""
    published = list(published)
    wildcards = {
        each
        for spec in (*(s.subjects for s in STREAMS), *(d.filters for d in DURABLES))
        for each in spec
        if each.startswith(subjects.ROOT)
    }
    return [
        each.replace("*", "unknown").replace(">", "nonsense")
        for each in sorted(wildcards)
        if not any(matches(one, [each]) for one in published)
    ]
