"""Renders every event and saga entry as text: a subject, a short title and a detail. Pure.

`navarch events`, `timeline`, `why`, `demo` and all alerts use this text.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from schemas import fleet_events as f
from schemas import node_events as n
from schemas import pool_events as p
from schemas import saga_log_entries as s
from schemas import subjects
from schemas.messages import Invalid, Message, UnknownType
from schemas.stored_messages import StoredMessage, decode_stored
from services.operator_text.fleet_event_words import (
    access_words,
    advise,
    fleet_event_words,
    setup_words,
)
from services.operator_text.quantities import gpu_hours
from services.operator_text.safe_text import escape_line
from services.operator_text.workload_words import drain_event_words, workload_event_words

Tone = Literal["good", "bad", "plain"]
SUMMARY_CHARS_MAX: Final = 240


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
        """The detail, shortened to fit a terminal line."""
        if len(self.detail) <= SUMMARY_CHARS_MAX:
            return self.detail
        return self.detail[: SUMMARY_CHARS_MAX - 1] + "…"


Words = tuple[str, str, Tone]
"""Title, detail and tone."""


def describe(message: Message | UnknownType | Invalid) -> EventDescription:
    """Render any message of the streams EVENTS and SAGAS."""
    subject, (title, detail, tone) = "", _words(message)
    match message:
        case n.NodeEvent():
            subject = f"{message.pool}/{message.node}"
        case p.PoolEvent():
            subject = _pool_subject(message)
        case s.SagaEntry():
            subject = message.saga
        case f.ConsumerLag():
            subject = message.durable
        case f.UnknownError():
            subject = message.provider
        case f.ServiceFailure():
            subject = message.about
        case f.HttpChange() | f.OrderAnswered():
            subject = message.by
        case _:
            pass
    one_line = " ".join(detail.split())
    return EventDescription(escape_line(subject), escape_line(title), escape_line(one_line), tone)


def describe_stored(stored: StoredMessage) -> EventDescription:
    """Render a stored message; one that cannot be used is about what its subject names."""
    text = describe(decode_stored(stored))
    return text if text.subject else replace(text, subject=escape_line(_about(stored.subject)))


def _about(subject: str) -> str:
    if node := subjects.parse_node(subject):
        return f"{node.pool}/{node.node}"
    if pool := subjects.parse_pool_event(subject):
        return pool.pool
    if entry := subjects.parse_saga(subject):
        return entry.saga
    return subject


def _pool_subject(event: p.PoolEvent) -> str:
    match event:
        case (
            p.SagaOpened() | p.SagaFailed() | p.SagaCancelled() | p.SagaIsStuck() | p.SagaOverdue()
        ):
            return event.saga
        case (
            p.NodeReplaced(old_node=node)
            | p.InstanceLeaked(instance=node)
            | p.InstanceIdCorrected(instance=node)
            | p.RemovalAnswered(instance=node)
        ):
            return f"{event.pool}/{node}"
        case p.NodeRefused() | p.OperatorNeeded() | p.LaunchRefused() | p.LaunchWaiting():
            return f"{event.pool}/{event.node}"
        case _:
            return event.pool


def _words(message: Message | UnknownType | Invalid) -> Words:
    match message:
        case n.NodeEvent():
            return _node_words(message)
        case p.RequestAccepted() | p.RequestRefused() | p.Scaled() | p.ScaleRefused():
            return _request_words(message)
        case p.PoolEvent():
            return _pool_words(message)
        case s.StepEntry():
            title, detail, tone = _step_words(message)
            return f"{message.step} {title}", detail, tone
        case s.SagaEntry():
            return _saga_words(message)
        case f.FleetEvent():
            return fleet_event_words(message)
        case UnknownType(type=kind):
            return "unknown", f"a message of type {kind}, which this release does not know", "plain"
        case Invalid(type=kind, reason=reason):
            return "invalid", f"{kind} {reason}".strip(), "bad"
        case _:
            return type(message).__name__, "", "plain"


# --- nodes ---------------------------------------------------------------------------------------


def _node_words(event: n.NodeEvent) -> Words:  # noqa: C901, PLR0912 - one case an event
    match event:
        case n.Fault():
            return "fault", _fault_detail(event), "bad"
        case n.Registered():
            host = f" on {event.hostname}" if event.hostname else ""
            return "registered", f"{len(event.gpus)} GPUs{host}", "good"
        case n.ProviderNotice():
            when = f", at {event.deadline:%m-%d %H:%M:%S} UTC" if event.deadline else ""
            if event.withdrawn:
                return "notice withdrawn", event.message + when, "good"
            return "notice", event.message + when, "bad"
        case n.BootChecked(ok=True):
            return "boot checks passed", ", ".join(check.name for check in event.checks), "good"
        case n.BootChecked():
            failed = [f"{check.name}: {check.detail}" for check in event.checks if not check.ok]
            return "boot checks failed", "; ".join(failed), "bad"
        case n.Verdict():
            return _verdict_words(event)
        case n.Lost(credentials_expired=True):
            return "lost", "its credentials expired, and were not renewed", "bad"
        case n.Lost():
            later = "it is rebooted or replaced if they do not resume"
            return "lost", f"heartbeats stopped; {later}", "bad"
        case n.Returned():
            return "returned", "heartbeats resumed", "good"
        case n.Admitted():
            return "admitted", "as a spare" if event.spare else "in service", "good"
        case n.Promoted():
            why = f"in place of {event.instead_of}" if event.instead_of else "the pool grew"
            return "promoted", f"the spare is in service, {why}", "good"
        case n.Cordoned():
            return "cordoned", event.reason, "plain"
        case n.Uncordoned():
            return "uncordoned", event.reason, "good"
        case n.NodeHeld():
            until = f"until {event.until:%m-%d %H:%M} UTC{_by(event.by)}"
            return "held", f"{until}: {event.reason}", "plain"
        case n.Released():
            return "released", f"{event.reason}{_by(event.by)}".strip(), "plain"
        case n.WorkRemains() | n.CheckpointRequested() | n.WorkLeft():
            return drain_event_words(event)
        case n.WorkloadState() | n.WorkGangs() | n.WorkFailed():
            return workload_event_words(event)
        case n.Drained(expired=True):
            return "drained", "the wait ended with work left on the node", "bad"
        case n.Drained():
            unknown = "without confirmation: work may be left on the node"
            return "drained", "no work left" if event.waited else unknown, "plain"
        case n.Remediated():
            return _remediated_words(event)
        case n.Terminated():
            return "terminated", "its instance is gone or being removed, or becomes a leak", "plain"
        case n.Repaired():
            seconds = (event.restored_at - event.unhealthy_at).total_seconds()
            cost = f"{seconds:.1f} s out of service, {gpu_hours(event.lost_gpu_hours)} GPU-hours"
            more = f"; evidence: navarch evidence {event.node}" if event.evidence else ""
            detail = f"{event.fault_signature}: {cost} lost; {event.outcome}{more}"
            return "repaired", detail, "good"
        case n.MachineRefused():
            return "second machine refused", advise(event.reason, event.remedy), "bad"
        case n.CredentialsIssued() | n.CredentialsRefused() | n.BusAccess():
            return access_words(event)
        case n.SetupRan():
            return setup_words(event)
        case _:
            return type(event).__name__, "", "plain"


def _verdict_words(event: n.Verdict) -> Words:
    title = "health unknown" if event.status == "unknown" else event.status
    facts = (
        ("was", "" if event.previous == "unknown" else event.previous),
        ("rule", event.rule),
        ("action", "" if event.action == "none" else event.action),
        ("policy", event.policy),
    )
    basis = ", ".join(f"{key} {value}" for key, value in facts if value)
    detail = f"{event.reason.rstrip('.')} ({basis})" if basis else event.reason
    return title, detail, "good" if event.status == "healthy" else "bad"


def _remediated_words(event: n.Remediated) -> Words:
    attempt = f", attempt {event.attempt} of {event.attempts_max}" if event.attempt else ""
    match event.outcome:
        case "recovered":
            title = "GPUs reset" if event.remediation == "reset-gpu" else "rebooted"
            took = f"back in service after {event.duration_seconds:.1f} s{attempt}"
            return title, f"{took}. {event.reason}", "good"
        case "cancelled":
            return f"{event.remediation} cancelled", f"{event.reason}{attempt}", "plain"
        case _:
            return f"{event.remediation} failed", f"at {event.step}: {event.reason}{attempt}", "bad"


def _condition(event: p.QuarantineFull | p.OnDemandShort | p.PoolCondition) -> str:
    if isinstance(event, p.PoolCondition):
        return event.condition
    return "quarantine full" if isinstance(event, p.QuarantineFull) else "too few on demand"


def _fault_detail(fault: n.Fault) -> str:
    code = f" {fault.code}" if fault.code else ""
    gpu = f" on GPU {fault.gpu_index}" if fault.gpu_index >= 0 else ""
    text = f": {fault.message}" if fault.message else ""
    return f"{fault.kind.replace('_', ' ').upper()}{code}{gpu}{text}"


# --- pools ---------------------------------------------------------------------------------------


def _request_words(
    event: p.RequestAccepted | p.RequestRefused | p.Scaled | p.ScaleRefused,
) -> Words:
    match event:
        case p.Scaled():
            return "scaled", f"{event.previous} -> {event.nodes} nodes. {event.reason}", "plain"
        case p.ScaleRefused():
            return "refused", f"scale ({event.refusal}): {event.reason}", "bad"
        case p.RequestRefused():
            request = f"{event.verb} {event.node}".strip()
            return "refused", f"{request} ({event.refusal}): {event.reason}", "bad"
        case p.RequestAccepted():
            saga = f", saga {event.saga}" if event.saga else ""
            note = f". {event.note}" if event.note else ""
            return "accepted", f"{event.verb} {event.node}".strip() + saga + note, "good"


def _pool_words(event: p.PoolEvent) -> Words:  # noqa: C901, PLR0912 - one case an event
    match event:
        case p.PoolRemoved():
            return "removed", "its last instance is terminated and its record is deleted", "plain"
        case p.BreakerOpened() | p.BreakerHalfOpened() | p.BreakerClosed():
            return _breaker_words(event)
        case p.QuarantineFull() | p.OnDemandShort() | p.PoolCondition():
            what, status = _condition(event), event.status
            tone: Tone = "bad" if status == "opened" else "good"
            return f"{what}: {status}", advise(event.reason, event.remedy), tone
        case p.Incident():
            return _incident_words(event)
        case p.SagaOpened():
            nodes = " -> ".join(name for name in (event.node, event.new_node) if name)
            return "saga opened", f"{event.kind} {nodes}: {event.reason}", "plain"
        case p.SagaFailed():
            retry = f"; next try in {event.retry_seconds:g} s" if event.retry_seconds else ""
            return "saga failed", f"at {event.step}, and undone: {event.reason}{retry}", "bad"
        case p.SagaCancelled():
            then = f"; then {event.then}" if event.then else ""
            return "saga cancelled", f"at {event.step}: {event.reason}{then}", "plain"
        case p.SagaIsStuck():
            detail = advise(f"at {event.step}: {event.reason}", event.remedy)
            return "saga stuck", detail, "bad"
        case p.SagaOverdue():
            detail = advise(f"at {event.step}: {event.reason}", event.remedy)
            return "saga overdue", detail, "bad"
        case p.WouldStart():
            what = event.node or f"{event.nodes} nodes"
            return "would begin", f"{event.kind} of {what}: {event.reason}", "plain"
        case p.NodesDrifted():
            then = "they are replaced at leisure" if event.replaced else "they are only reported"
            what = ", ".join(event.differences)
            return "nodes drifted", f"{event.nodes} launched with another {what}: {then}", "plain"
        case p.NodeRefused():
            attempt = f"attempt {event.attempt} of {event.attempts}"
            return "not admitted", advise(f"{attempt}: {event.reason}", event.remedy), "bad"
        case p.NodeReplaced():
            return "replaced", f"{_replacement(event)}. {event.reason}", "good"
        case p.OperatorNeeded():
            detail = f"{event.reason.rstrip('.')}. {event.remedy.rstrip('.')}"
            if not event.removed:
                state = "cordoned" if event.cordoned else "in service"
                detail = f"{detail}. The node stays {state} until then"
            return "operator needed", detail, "bad"
        case p.InstanceLeaked():
            instance = f" ({event.provider_id})" if event.provider_id else ""
            cost = f", ${event.dollars_per_hour:g} an hour" if event.dollars_per_hour else ""
            detail = f"still at {event.provider}{instance}{cost}: {event.reason.rstrip('.')}"
            return "leaked", detail, "bad"
        case p.RemovalAnswered():
            held = f" is held back ({event.gate})" if event.gate else ""
            detail = f"{event.provider_id} at {event.provider}{held}: {event.reason}"
            return "removal held" if held else "removal granted", detail, "bad" if held else "plain"
        case p.InstanceIdCorrected():
            detail = f"{event.provider} lists it as {event.provider_id}, and no longer as "
            return "ID corrected", f"{detail}{event.previous}", "plain"
        case p.LaunchRefused():
            return (
                "launch refused",
                advise(f"{event.refusal}: {event.reason}", event.remedy),
                "bad",
            )
        case p.LaunchWaiting():
            until = f"at least until {event.until:%m-%d %H:%M:%S} UTC: " if event.until else ""
            return "launch waits", until + event.reason, "bad"
        case _:
            return type(event).__name__, "", "plain"


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


def _breaker_words(event: p.BreakerOpened | p.BreakerHalfOpened | p.BreakerClosed) -> Words:
    if isinstance(event, p.BreakerHalfOpened):
        return "breaker half-open", f"{event.saga} is the probe: {event.reason}", "plain"
    used = f"{event.unavailable} out of service, {event.limit} allowed"
    reason = f"{event.reason.rstrip('.')}. " if event.reason else ""
    if isinstance(event, p.BreakerClosed):
        by = f"{_by(event.by).strip()}: " if event.by else ""
        return "breaker closed", f"{by}{reason}{used}", "good"
    cause = BREAKER_CAUSES.get(event.breaker_cause, event.breaker_cause) + _by(event.by)
    waiting = f". Waiting: {', '.join(event.waiting)}" if event.waiting else ""
    return "breaker opened", f"{cause}: {reason}{used}{waiting}", "bad"


def _incident_words(event: p.Incident) -> Words:
    if event.within:
        # Nodes that share a location may have different faults; the reason names them.
        shared = f"{event.nodes} nodes of {event.scope} {event.within}"
    else:
        fault = f"{event.kind} {event.code}" if event.code else event.kind
        shared = f"{event.nodes} nodes with {fault}"
    named = f". Nodes: {', '.join(event.named)}" if event.named else ""
    detail = event.reason.rstrip(".") + named
    if event.status == "opened":
        return f"incident opened: {shared}", f"{detail}. navarch list --pool {event.pool}", "bad"
    return f"incident closed: {shared}", detail, "good"


def _replacement(event: p.NodeReplaced) -> str:
    if event.promoted:
        spare = f"by {event.promoted}, a spare"
        return f"{spare}; {event.new_node} is the new spare, after {event.duration_seconds:.1f} s"
    return f"by {event.new_node} in {event.duration_seconds:.1f} s"


# --- sagas ---------------------------------------------------------------------------------------


def _saga_words(entry: s.SagaEntry) -> Words:
    match entry:
        case s.SagaStarted(kind=kind, params=params):
            nodes = " -> ".join(name for name in (params.node, params.new_node) if name)
            return "saga started", f"{kind} {nodes}: {params.reason}", "plain"
        case s.SagaUnwinding():
            return "saga unwinding", f"at {entry.step}: {entry.reason}", "bad"
        case s.SagaDone():
            return "saga done", "", "good"
        case s.SagaUnwound():
            return "saga unwound", entry.reason, "bad"
        case s.SagaStuck():
            return "saga stuck", advise(entry.reason, entry.remedy), "bad"
        case s.SagaRetried():
            return "saga retried", f"at {entry.step}. {entry.reason}", "plain"
        case _:
            return type(entry).__name__, "", "plain"


def _step_words(entry: s.StepEntry) -> Words:
    match entry:
        case s.StepStarted():
            return "started", "", "plain"
        case s.StepSucceeded():
            return "succeeded", _outputs(entry.outputs), "good"
        case s.StepFailed():
            return "failed", f"{entry.error} {entry.reason}".strip(), "bad"
        case s.StepExpired():
            return "expired", entry.reason or "its deadline passed", "bad"
        case s.StepOverdue():
            return "overdue", "it takes longer than expected, and is still waited for", "bad"
        case s.UndoStarted():
            return "undo started", "", "plain"
        case s.UndoSucceeded():
            return "undone", "", "plain"
        case s.UndoFailed():
            return "undo failed", advise(entry.reason, entry.remedy), "bad"
        case _:
            return type(entry).__name__, "", "plain"


def _outputs(outputs: dict[str, Any]) -> str:
    """What a step returned, in words; what operators cannot use is left out."""
    match outputs:
        case {"drain_confirmed": confirmed}:
            unknown = "without confirmation: work may be left on the node"
            return "no work left" if confirmed else unknown
        case {"by": by}:
            return " ".join(each for each in (f"by {by}", str(outputs.get("detail", ""))) if each)
        case _:
            shown = {key: value for key, value in outputs.items() if value not in ("", None)}
            return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in shown.items())


def _by(name: str) -> str:
    return f" by {name}" if name else ""
