"""Renders every event and saga entry as text: a subject, a short title and a detail. Pure.

`schemas.event_texts` declares the texts. `navarch events`, `timeline`, `why`, `demo` and all alerts
use them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any, Final

from schemas import node_events as n
from schemas import saga_log_entries as s
from schemas import subjects
from schemas.event_texts import ABOUT, EVENT_TEXTS, UNCONFIRMED, EventWording, Tone
from schemas.messages import Invalid, Message, UnknownType
from schemas.stored_messages import StoredMessage, decode_stored
from services.operator_text.quantities import gpu_hours
from services.operator_text.safe_text import escape_line
from services.operator_text.workload_words import (
    checkpoint_words,
    failed_work_words,
    owners_words,
    state_words,
    work_words,
)

SUMMARY_CHARS_MAX: Final = 240
OUTPUT_CHARS_MAX: Final = 200
"""Of a setup command that failed: the end of its output."""


@dataclass(frozen=True, slots=True)
class EventDescription:
    """Describes an event in words."""

    subject: str
    """What the event is about: `pool/node`, a pool, a saga, a durable or a provider."""
    title: str
    detail: str = ""
    """The rest of the sentence, on one line."""
    tone: Tone = "plain"

    @property
    def name(self) -> str:
        """Return the subject without its pool."""
        return self.subject.rpartition("/")[2]

    @property
    def summary(self) -> str:
        """Return the detail, shortened to fit a terminal line."""
        if len(self.detail) <= SUMMARY_CHARS_MAX:
            return self.detail
        return self.detail[: SUMMARY_CHARS_MAX - 1] + "…"


def describe(message: Message | UnknownType | Invalid) -> EventDescription:
    """Render any message of the streams EVENTS and SAGAS."""
    match message:
        case UnknownType(type=kind):
            detail = f"a message of type {kind}, which this release does not know"
            return _description("", "unknown", detail, "plain")
        case Invalid(type=kind, reason=reason):
            return _description("", "invalid", f"{kind} {reason}", "bad")
    text = next((each for each in _texts(type(message)) if holds(each.when, message)), None)
    subject = rendered(_about(type(message)), message)
    if text is None:
        return _description(subject, type(message).__name__, "", "plain")
    detail = _detail(text.detail, message)
    if remedy := rendered(text.remedy, message):
        detail = f"{detail.rstrip('. ')}. What to do: {remedy}"
    return _description(subject, rendered(text.title, message), detail, text.tone)


def describe_stored(stored: StoredMessage) -> EventDescription:
    """Render a stored message; one that cannot be used is about what its subject names."""
    text = describe(decode_stored(stored))
    return text if text.subject else replace(text, subject=escape_line(_named(stored.subject)))


def holds(when: Mapping[str, Any], message: Any) -> bool:
    """Return whether fields have these values, or one of several; True, False: one, or none."""
    for name, wanted in when.items():
        value = _getter(name)(message)
        if isinstance(wanted, bool):
            value = bool(value)
        elif isinstance(wanted, tuple | frozenset):
            value, wanted = value in wanted, True  # noqa: PLW2901 - compared as a condition
        if value != wanted:
            return False
    return True


# --- templates -----------------------------------------------------------------------------------

FILTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bare": lambda value: value.rstrip("."),
    "count": len,
    "cause": lambda value: BREAKER_CAUSES.get(value, value),
}
FIELD: Final = re.compile(r"\{(?P<name>[a-z_.]+)(?:\|(?P<filter>[a-z]+))?(?P<format>:[^}]*)?\}")
OPTIONAL: Final = re.compile(r"\[([^\]]*)\]")
Part = Callable[[Any], str]
"""Returns what a part of a template becomes for a message."""


def rendered(template: str, message: Any) -> str:
    """Return a template with the message's fields."""
    return "".join([each(message) for each in _parts(template)]) if template else ""


@cache
def _parts(template: str) -> tuple[Part, ...]:
    *pieces, last = OPTIONAL.split(template)
    found: list[Part] = []
    for always, optional in zip(pieces[::2], pieces[1::2], strict=True):
        found += [*_pieces(always), _optional(optional)]
    return (*found, *_pieces(last))


def _optional(template: str) -> Part:
    first = FIELD.search(template)
    assert first is not None
    read, parts = attrgetter(first["name"]), _pieces(template)
    return lambda message: "".join([each(message) for each in parts]) if read(message) else ""


def _pieces(template: str) -> list[Part]:
    found: list[Part] = []
    end = 0
    for each in FIELD.finditer(template):
        found += [_literal(template[end : each.start()]), _field(each)]
        end = each.end()
    return [*found, _literal(template[end:])]


def _literal(text: str) -> Part:
    return lambda _: text


def _field(found: re.Match[str]) -> Part:
    read, kind = attrgetter(found["name"]), (found["format"] or ":")[1:]
    change = FILTERS[found["filter"]] if found["filter"] else None

    def value(message: Any) -> str:
        value = change(read(message)) if change else read(message)
        return ", ".join(value) if isinstance(value, tuple) else format(value, kind)

    return value


def _detail(template: str, message: Any) -> str:
    if template.startswith("="):
        return DETAILS[template[1:]](message)
    return rendered(template, message)


_getter = cache(attrgetter)


@cache
def _texts(kind: type[Message]) -> Sequence[EventWording]:
    return EVENT_TEXTS.get(kind, ())


@cache
def _about(kind: type[Message]) -> str:
    return next((ABOUT[each] for each in kind.__mro__ if each in ABOUT), "")


def _description(subject: str, title: str, detail: str, tone: Tone) -> EventDescription:
    one_line = " ".join(detail.split())
    return EventDescription(escape_line(subject), escape_line(title), escape_line(one_line), tone)


def _named(subject: str) -> str:
    if node := subjects.parse_node(subject):
        return f"{node.pool}/{node.node}"
    if pool := subjects.parse_pool_event(subject):
        return pool.pool
    if entry := subjects.parse_saga(subject):
        return entry.saga
    return subject


# --- details that no template has ----------------------------------------------------------------


def _fault(fault: n.Fault) -> str:
    code = f" {fault.code}" if fault.code else ""
    gpu = f" on GPU {fault.gpu_index}" if fault.gpu_index >= 0 else ""
    text = f": {fault.message}" if fault.message else ""
    return f"{fault.kind.replace('_', ' ').upper()}{code}{gpu}{text}"


def _failed_checks(event: n.BootChecked) -> str:
    return "; ".join(f"{each.name}: {each.detail}" for each in event.checks if not each.ok)


def _verdict(event: n.Verdict) -> str:
    facts = (
        ("was", "" if event.previous == "unknown" else event.previous),
        ("rule", event.rule),
        ("action", "" if event.action == "none" else event.action),
        ("policy", event.policy),
    )
    basis = ", ".join(f"{key} {value}" for key, value in facts if value)
    return f"{event.reason.rstrip('.')} ({basis})" if basis else event.reason


def _repaired(event: n.Repaired) -> str:
    seconds = (event.restored_at - event.unhealthy_at).total_seconds()
    cost = f"{seconds:.1f} s out of service, {gpu_hours(event.lost_gpu_hours)} GPU-hours"
    more = f"; evidence: navarch evidence {event.node}" if event.evidence else ""
    return f"{event.fault_signature}: {cost} lost; {event.outcome}{more}"


def _setup(event: n.SetupRan) -> str:
    took = f"{event.text}: exit {event.exit_status} after {event.duration_seconds:.1f} s"
    return f"{took}; {' '.join(event.output.split())[-OUTPUT_CHARS_MAX:]}"


def _outputs(entry: s.StepSucceeded) -> str:
    """Say what a step returned, in words; what operators cannot use is left out."""
    outputs = entry.outputs
    match outputs:
        case {"drain_confirmed": confirmed}:
            return "no work left" if confirmed else UNCONFIRMED
        case {"by": by}:
            return " ".join(each for each in (f"by {by}", str(outputs.get("detail", ""))) if each)
        case _:
            shown = {key: value for key, value in outputs.items() if value not in ("", None)}
            return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in shown.items())


DETAILS: Final[Mapping[str, Callable[[Any], str]]] = {
    "fault": _fault,
    "passed": lambda event: ", ".join(each.name for each in event.checks),
    "failed": _failed_checks,
    "verdict": _verdict,
    "repaired": _repaired,
    "setup": _setup,
    "outputs": _outputs,
    "work": lambda event: work_words(event, event.time),
    "checkpoint": checkpoint_words,
    "owners": owners_words,
    "state": state_words,
    "failed_work": failed_work_words,
}
BREAKER_CAUSES: Final[dict[str, str]] = {
    "level": "the pool's limit of nodes out of service is reached",
    "rate": "the pool's limit of disruptions is reached",
    "fleet-level": "the fleet's limit of nodes out of service is reached",
    "fleet-rate": "the fleet's limit of disruptions is reached",
    "reset-rate": "the pool's limit of GPU resets and reboots is reached",
    "fleet-reset-rate": "the fleet's limit of GPU resets and reboots is reached",
    "wave": "many nodes have a common fault",
    "launches-fail": "launches fail",
    "workload-system": "the workload system does not cordon",
    "probe-failed": "the probe failed",
    "restored": "the store was restored from a backup",
    "operator": "requested",
}
