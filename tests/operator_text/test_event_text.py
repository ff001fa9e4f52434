"""Every message of the streams is rendered as text."""

from datetime import UTC, datetime

import msgspec
import pytest

from schemas.messages import Invalid, Message, UnknownType
from schemas.node_events import (
    NODE_EVENT_TYPES,
    BootChecked,
    CheckResult,
    Drained,
    Fault,
    Remediated,
    Telemetry,
    Verdict,
)
from schemas.node_work import RemainingWork
from schemas.pool_events import (
    POOL_EVENT_TYPES,
    Incident,
    LaunchRefused,
    LaunchWaiting,
    NodeReplaced,
    OperatorNeeded,
    Scaled,
    ScaleRefused,
)
from schemas.saga_log_entries import STATUSES, StepFailed, StepSucceeded
from schemas.saga_params import SagaParams
from schemas.value_limits import Int
from services.operator_text.event_text import EventDescription, describe

NOW = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)
NODE = {"id": "1", "time": NOW, "pool": "training", "node": "n1"}
POOL = {"id": "1", "time": NOW, "pool": "training"}
STEP = {"id": "1", "time": NOW, "saga": "replace-n1-1", "step": "provision"}

WORDS = [
    (
        Fault(kind="fallen_off_bus", code=79, gpu_index=3, message="gone\n for good", **NODE),
        EventDescription(
            "training/n1", "fault", "FALLEN OFF BUS 79 on GPU 3: gone for good", "bad"
        ),
    ),
    (
        Verdict(status="unhealthy", action="replace", rule="r1", reason="XID 79", **NODE),
        EventDescription("training/n1", "unhealthy", "XID 79 (rule r1, action replace)", "bad"),
    ),
    (
        BootChecked(
            ok=False, checks=(CheckResult(name="gpus", ok=False, detail="7 of 8"),), **NODE
        ),
        EventDescription("training/n1", "boot checks failed", "gpus: 7 of 8", "bad"),
    ),
    (
        Drained(expired=True, **NODE),
        EventDescription(
            "training/n1", "drained", "the wait ended with work left on the node", "bad"
        ),
    ),
    (
        Remediated(
            remediation="reset-gpu",
            outcome="recovered",
            attempt=1,
            attempts_max=3,
            reason="XID 95",
            duration_seconds=0.46,
            **NODE,
        ),
        EventDescription(
            "training/n1",
            "GPUs reset",
            "back in service after 0.5 s, attempt 1 of 3. XID 95",
            "good",
        ),
    ),
    (
        Remediated(
            remediation="reboot", outcome="failed", step="return", reason="too late", **NODE
        ),
        EventDescription("training/n1", "reboot failed", "at return: too late", "bad"),
    ),
    (
        OperatorNeeded(node="n1", reason="XID 74", remedy="look at it", **POOL),
        EventDescription(
            "training/n1",
            "operator needed",
            "XID 74. look at it. The node stays in service until then",
            "bad",
        ),
    ),
    (
        LaunchRefused(
            node="n1", refusal="above-pool-cap", reason="it costs too much", remedy="wait", **POOL
        ),
        EventDescription(
            "training/n1",
            "launch refused",
            "above-pool-cap: it costs too much. What to do: wait",
            "bad",
        ),
    ),
    (
        LaunchWaiting(node="n1", reason="aws p5 (CAPACITY: none)", until=NOW, **POOL),
        EventDescription(
            "training/n1",
            "launch waits",
            f"at least until {NOW:%m-%d %H:%M:%S} UTC: aws p5 (CAPACITY: none)",
            "bad",
        ),
    ),
    (Scaled(previous=3, nodes=5, **POOL), EventDescription("training", "scaled", "3 -> 5 nodes.")),
    (
        ScaleRefused(refusal="above-maximum", reason="9 is above 4", **POOL),
        EventDescription("training", "refused", "scale (above-maximum): 9 is above 4", "bad"),
    ),
    (
        Incident(
            incident="xid-79-1",
            status="opened",
            kind="xid",
            code=79,
            nodes=6,
            first=NOW,
            last=NOW,
            reason="one is replaced at a time",
            **POOL,
        ),
        EventDescription(
            "training",
            "incident opened: 6 nodes with xid 79",
            "one is replaced at a time. navarch list --pool training",
            "bad",
        ),
    ),
    (
        NodeReplaced(old_node="n1", new_node="n2", saga="s", duration_seconds=1.25, **POOL),
        EventDescription("training/n1", "replaced", "by n2 in 1.2 s.", "good"),
    ),
    (
        StepSucceeded(outputs={"provider": "local", "zone": ""}, **STEP),
        EventDescription("replace-n1-1", "provision succeeded", "provider local", "good"),
    ),
    (
        StepSucceeded(outputs={"drain_confirmed": True}, **STEP),
        EventDescription("replace-n1-1", "provision succeeded", "no work left", "good"),
    ),
    (
        StepSucceeded(outputs={"by": "agent", "detail": "2 GPUs", "at": None}, **STEP),
        EventDescription("replace-n1-1", "provision succeeded", "by agent 2 GPUs", "good"),
    ),
    (
        StepFailed(reason="no H100 left", error="CAPACITY", **STEP),
        EventDescription("replace-n1-1", "provision failed", "CAPACITY no H100 left", "bad"),
    ),
    (
        UnknownType("io.navarch.x"),
        EventDescription(
            "", "unknown", "a message of type io.navarch.x, which this release does not know"
        ),
    ),
    (Invalid("", "not a message"), EventDescription("", "invalid", "not a message", "bad")),
]


@pytest.mark.parametrize(("message", "expected"), WORDS, ids=lambda each: type(each).__name__)
def test_a_message_is_rendered_on_one_line(message: Message, expected: EventDescription) -> None:
    """Each kind of message has its sentence, on one line."""
    assert describe(message) == expected


def test_every_kind_of_message_has_words_of_its_own() -> None:
    """No event or saga entry falls through to its class's name; samples are not rendered."""
    kinds = {*NODE_EVENT_TYPES, *POOL_EVENT_TYPES, *STATUSES} - {Telemetry}
    assert {kind for kind in kinds if describe(_any(kind)).title == kind.__name__} == set()


def _any(kind: type[Message]) -> Message:
    """A message of a kind, with some value for every field that must be given."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            values[field.name] = {
                datetime: NOW,
                int: 1,
                Int: 1,
                bool: True,
                str: "x",
                SagaParams: SagaParams(pool="p"),
                RemainingWork: RemainingWork(id="job 4711"),
            }.get(field.type, NOW if field.name.endswith(("time", "_at", "until")) else "healthy")
    return kind(**values)
