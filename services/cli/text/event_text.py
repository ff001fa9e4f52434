"""Says in a few words what a message means to a person. Pure: a message in, words out.

`navarch events`, `timeline` and `demo` all speak through this, so that the same thing is called the
same everywhere.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from schemas import fleet_events as f
from schemas import node_events as n
from schemas import pool_events as p
from schemas import saga_log_entries as s
from schemas.messages import Invalid, Message, UnknownType

Mood = Literal["good", "bad", "plain"]
DETAIL_CHARS_MAX: Final = 240


@dataclass(frozen=True, slots=True)
class Told:
    """What happened: about whom, in two or three words, and the rest of the sentence."""

    about: str
    what: str
    detail: str = ""
    mood: Mood = "plain"


def tell(message: Message | UnknownType | Invalid) -> Told:
    """Describe any message of the fleet's story."""
    told = _tell(message)
    detail = " ".join(told.detail.split())
    if len(detail) > DETAIL_CHARS_MAX:
        detail = detail[: DETAIL_CHARS_MAX - 1] + "…"
    return Told(told.about, told.what, detail, told.mood)


def _tell(message: Message | UnknownType | Invalid) -> Told:
    match message:
        case n.NodeEvent():
            return _node(message)
        case p.PoolEvent():
            return _pool(message)
        case s.SagaEntry():
            return _entry(message)
        case f.ConsumerLag():
            mood: Mood = "bad" if message.status == "lagging" else "good"
            return Told(message.durable, message.status, message.reason, mood)
        case f.UnknownError(provider=provider, code=code, message=said):
            return Told(provider, "unknown error", f"{code}: {said}", "bad")
        case UnknownType(type=kind):
            return Told(
                "", "unknown", f"a message of type {kind}, which this release does not know"
            )
        case Invalid(type=kind, reason=reason):
            return Told("", "invalid", f"{kind} {reason}".strip(), "bad")
        case _:
            return Told("", type(message).__name__)


def _node(event: n.NodeEvent) -> Told:  # noqa: C901, PLR0912 - one case a fact
    about = f"{event.pool}/{event.node}"
    match event:
        case n.Fault():
            return Told(about, "fault", _fault(event), "bad")
        case n.Registered():
            host = f"on {event.hostname}" if event.hostname else ""
            return Told(about, "registered", f"{len(event.gpus)} GPUs {host}".strip(), "good")
        case n.Preempting():
            when = f", at {event.deadline:%m-%d %H:%M:%S} UTC" if event.deadline else ""
            what = "notice withdrawn" if event.withdrawn else "notice"
            return Told(about, what, event.message + when, "good" if event.withdrawn else "bad")
        case n.BootChecked():
            failed = [f"{each.name}: {each.detail}" for each in event.checks if not each.ok]
            passed = f"{len(event.checks)} boot checks passed"
            return Told(
                about,
                "boot checks",
                passed if event.ok else "; ".join(failed) or "failed",
                "good" if event.ok else "bad",
            )
        case n.Verdict():
            action = f", action {event.action}" if event.action != "none" else ""
            rule = f" (rule {event.rule}{action})" if event.rule else ""
            mood: Mood = "good" if event.status == "healthy" else "bad"
            return Told(about, "verdict", f"{event.status}: {event.reason}{rule}", mood)
        case n.Lost():
            return Told(about, "lost", "its heartbeat ran out", "bad")
        case n.Returned():
            return Told(about, "returned", "its heart beats again", "good")
        case n.Admitted():
            return Told(about, "admitted", "in reserve" if event.spare else "in service", "good")
        case n.Promoted():
            place = f"instead of {event.instead_of}" if event.instead_of else "the pool grows"
            return Told(about, "promoted", f"the spare is in service, {place}", "good")
        case n.Cordoned():
            return Told(about, "cordoned", event.reason)
        case n.Uncordoned():
            return Told(about, "uncordoned", event.reason, "good")
        case n.Held():
            by = f" by {event.by}" if event.by else ""
            return Told(about, "held", f"until {event.until:%m-%d %H:%M} UTC{by}: {event.reason}")
        case n.Released():
            by = f" by {event.by}" if event.by else ""
            return Told(about, "released", f"{event.reason}{by}".strip())
        case n.Drained():
            late = "waited for no longer, with work left" if event.expired else "no work left"
            late = late if event.waited else "its work was told to leave; nobody waited"
            return Told(about, "drained", late, "bad" if event.expired else "plain")
        case n.Remediated():
            return _remediated(about, event)
        case n.Terminated():
            return Told(about, "terminated", "the provider confirmed that it is gone")
        case n.Repaired():
            seconds = (event.restored_at - event.unhealthy_at).total_seconds()
            cost = f"{hours(event.lost_gpu_hours)} GPU-hours"
            what = event.fault_signature
            text = f"{what}: {seconds:.1f} s out of service, {cost}; {event.outcome}"
            return Told(about, "repaired", text, "good")
        case n.CredentialsIssued():
            return Told(about, "credentials issued", f"to its own agent, for key {event.key[:9]}…")
        case n.CredentialsRefused():
            return Told(about, "credentials refused", event.reason, "bad")
        case n.SetupRan():
            took = f"{event.text}: exit {event.exit_status} after {event.duration_seconds:.1f} s"
            said = f"; {' '.join(event.output.split())[-200:]}" if event.exit_status else ""
            nth = f"setup {event.command}/{event.commands}"
            return Told(about, nth, took + said, "bad" if event.exit_status else "plain")
        case _:
            return Told(about, type(event).__name__)


def _remediated(about: str, event: n.Remediated) -> Told:
    what = "GPUs reset" if event.remedy == "reset-gpu" else "rebooted"
    nth = f", attempt {event.attempt} of {event.attempts_max}" if event.attempt else ""
    match event.outcome:
        case "recovered":
            took = f"back in service after {event.duration_seconds:.1f} s{nth}. {event.reason}"
            return Told(about, what, took, "good")
        case "cancelled":
            return Told(about, f"{event.remedy} cancelled", f"{event.reason}{nth}")
        case _:
            return Told(
                about, f"{event.remedy} failed", f"{event.step}: {event.reason}{nth}", "bad"
            )


def _fault(fault: n.Fault) -> str:
    code = f" {fault.code}" if fault.code else ""
    gpu = f" on GPU {fault.gpu_index}" if fault.gpu_index >= 0 else ""
    text = f": {fault.message}" if fault.message else ""
    return f"{fault.kind.replace('_', ' ').upper()}{code}{gpu}{text}"


def _pool(event: p.PoolEvent) -> Told:  # noqa: C901, PLR0912 - one case a fact
    match event:
        case (
            p.PoolRemoved()
            | p.Scaled()
            | p.ScaleRefused()
            | p.RequestAccepted()
            | p.RequestRefused()
        ):
            return _asked(event)
        case p.BreakerOpened():
            by = f" by {event.by}" if event.by else ""
            text = f"{event.breaker_cause}{by}: {event.reason}. {_use(event)}"
            return Told(event.pool, "breaker opened", text, "bad")
        case p.BreakerHalfOpened():
            text = f"{event.saga} is tried first: {event.reason}"
            return Told(event.pool, "breaker half-open", text)
        case p.Incident():
            what = f"{event.kind} {event.code}" if event.code else event.kind
            state: Mood = "bad" if event.status == "opened" else "good"
            # What shares a place may have different faults; the reason names them.
            where = f"{event.nodes} nodes of {event.scope} {event.within}"
            shared = where if event.within else f"{what} on {event.nodes} nodes"
            nodes = f"{shared}. {event.reason}"
            return Told(event.pool, f"incident {event.status}", nodes, state)
        case p.BreakerClosed():
            by = f"by {event.by}: " if event.by else ""
            text = f"{by}{event.reason}. {_use(event)}" if event.reason else _use(event)
            return Told(event.pool, "breaker closed", text, "good")
        case p.SagaOpened():
            nodes = " -> ".join(name for name in (event.node, event.new_node) if name)
            return Told(event.pool, "saga began", f"{event.kind} {nodes}: {event.reason}")
        case p.WouldStart():
            what = event.node or f"{event.nodes} nodes"
            return Told(event.pool, "would begin", f"{event.kind} of {what}: {event.reason}")
        case p.NodeRefused():
            remedy = f". What to do: {event.remedy}" if event.remedy else ""
            text = f"{event.node} ({event.attempt} of {event.attempts}): {event.reason}{remedy}"
            return Told(event.pool, "not admitted", text, "bad")
        case p.NodeReplaced():
            took = _replaced(event)
            return Told(event.pool, "node replaced", f"{took}. {event.reason}", "good")
        case p.SagaFailed():
            retry = f"; next try in {event.retry_seconds:g} s" if event.retry_seconds else ""
            text = f"{event.saga} at {event.step}: {event.reason}{retry}"
            return Told(event.pool, "saga failed", text, "bad")
        case p.SagaCancelled():
            then = f"; then {event.then}" if event.then else ""
            text = f"{event.saga} at {event.step}: {event.reason}{then}"
            return Told(event.pool, "saga cancelled", text)
        case p.SagaIsStuck():
            remedy = f". What to do: {event.remedy}" if event.remedy else ""
            text = f"{event.saga} at {event.step}: {event.reason}{remedy}"
            return Told(event.pool, "saga stuck", text, "bad")
        case p.SagaOverdue():
            text = f"{event.saga} at {event.step}: {event.reason}. What to do: {event.remedy}"
            return Told(event.pool, "saga overdue", text, "bad")
        case p.OperatorNeeded():
            text = f"{event.node}: {event.reason}. {event.remedy}"
            return Told(event.pool, "person needed", text, "bad")
        case p.InstanceLeaked():
            cost = f", ${event.dollars_per_hour:g} an hour" if event.dollars_per_hour else ""
            text = f"{event.instance} at {event.provider}{cost}: {event.reason}"
            return Told(event.pool, "instance leaked", text, "bad")
        case p.LaunchRefused() | p.LaunchWaiting():
            return _launch(event)
        case _:
            return Told(event.pool, type(event).__name__)


def _launch(event: p.LaunchRefused | p.LaunchWaiting) -> Told:
    if isinstance(event, p.LaunchRefused):
        text = f"{event.node} ({event.refusal}): {event.reason}. What to do: {event.remedy}"
        return Told(event.pool, "launch refused", text, "bad")
    when = f", until {event.until:%m-%d %H:%M:%S} UTC at least" if event.until else ""
    return Told(event.pool, "launch waits", f"{event.node}{when}: {event.reason}", "bad")


def _use(event: p.BreakerOpened | p.BreakerClosed) -> str:
    return f"{event.unavailable} out of service, {event.limit} allowed"


def _entry(entry: s.SagaEntry) -> Told:
    match entry:
        case s.SagaStarted(kind=kind, params=params):
            nodes = " -> ".join(name for name in (params.node, params.new_node) if name)
            return Told(entry.saga, "saga started", f"{kind} {nodes}: {params.reason}")
        case s.SagaUnwinding():
            return Told(entry.saga, "saga unwinding", f"at {entry.step}: {entry.reason}", "bad")
        case s.SagaDone():
            return Told(entry.saga, "saga done", "", "good")
        case s.SagaUnwound():
            return Told(entry.saga, "saga unwound", entry.reason, "bad")
        case s.SagaStuck():
            return Told(entry.saga, "saga stuck", f"{entry.reason}. {entry.remedy}", "bad")
        case s.SagaRetried():
            return Told(entry.saga, "saga retried", f"at {entry.step}. {entry.reason}")
        case s.StepEntry():
            return _step(entry)
        case _:
            return Told(entry.saga, type(entry).__name__)


def _step(entry: s.StepEntry) -> Told:
    def told(what: str, detail: str = "", mood: Mood = "plain") -> Told:
        return Told(entry.saga, f"{entry.step} {what}", detail, mood)

    match entry:
        case s.StepStarted():
            return told("started")
        case s.StepSucceeded():
            return told("succeeded", _values(entry.outputs), "good")
        case s.StepFailed():
            return told("failed", f"{entry.error} {entry.reason}".strip(), "bad")
        case s.StepExpired():
            return told("expired", entry.reason or "its deadline passed", "bad")
        case s.StepOverdue():
            return told("overdue", "it lasts longer than it should", "bad")
        case s.UndoStarted():
            return told("undo started")
        case s.UndoSucceeded():
            return told("undone")
        case s.UndoFailed():
            return told("undo failed", f"{entry.reason}. {entry.remedy}", "bad")
        case _:
            return told(type(entry).__name__)


def _values(outputs: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in outputs.items() if value not in ("", None))


def _replaced(event: p.NodeReplaced) -> str:
    seconds = f"{event.duration_seconds:.1f} s"
    if not event.promoted:
        return f"{event.old_node} -> {event.new_node} in {seconds}"
    spare = f"{event.old_node} -> {event.promoted}, a spare"
    return f"{spare}; {event.new_node} is the new one, after {seconds}"


def hours(count: float) -> str:
    """GPU-hours, with more digits where there are few of them."""
    if count >= 0.1 or not count:  # noqa: PLR2004
        return f"{count:.2f}"
    return f"{count:.3f}" if count >= 0.001 else "<0.001"  # noqa: PLR2004


def _asked(event: p.PoolEvent) -> Told:
    """What people asked of a pool, and what came of it."""
    match event:
        case p.PoolRemoved():
            return Told(event.pool, "removed", "its last node is gone, and so is the pool")
        case p.Scaled():
            return Told(event.pool, "scaled", f"{event.was} -> {event.nodes} nodes. {event.reason}")
        case p.ScaleRefused():
            return Told(event.pool, "refused", f"scale ({event.refusal}): {event.reason}", "bad")
        case p.RequestAccepted():
            saga = f", saga {event.saga}" if event.saga else ""
            note = f". {event.note}" if event.note else ""
            asked = f"{event.verb} {event.node}".strip()
            return Told(event.pool, "accepted", f"{asked}{saga}{note}", "good")
        case p.RequestRefused():
            asked = f"{event.verb} {event.node}".strip()
            return Told(event.pool, "refused", f"{asked} ({event.refusal}): {event.reason}", "bad")
        case _:
            return Told(event.pool, type(event).__name__)
