"""Declares what operators read of each event and saga entry: title, detail, tone, subject.

The first text whose `when` holds is used. A template has fields in braces: `{params.node}` of a
part, `{reason|bare}` through a filter, `{until:%H:%M}` with a format. Text in brackets is left out
where its first field is empty. A detail `=name` is made by the function of that name in
`services.operator_text.event_text`, which renders all of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from schemas import fleet_events as f
from schemas import node_events as n
from schemas import pool_events as p
from schemas import saga_log_entries as s
from schemas.messages import Message

Tone = Literal["good", "bad", "plain"]


class EventWording(NamedTuple):
    """Says one event in words."""

    title: str
    detail: str
    tone: Tone
    remedy: str
    """What an operator does, after the detail."""
    when: Mapping[str, Any]
    """Field -> its value, or one of several; True and False: whether it is empty."""


def _text(
    title: str, detail: str = "", tone: Tone = "plain", remedy: str = "", **when: Any
) -> EventWording:
    named = {name.replace("__", "."): value for name, value in when.items()}
    return EventWording(title, detail, tone, remedy, named)


_REMEDY: Final = "{remedy}"
_NOTICE: Final = "{message}[, at {deadline:%m-%d %H:%M:%S} UTC]"
_ATTEMPT: Final = "[, attempt {attempt} of {attempts_max}]"
_BACK: Final = f"back in service after {{duration_seconds:.1f}} s{_ATTEMPT}. {{reason}}"
_USED: Final = "[{reason|bare}. ]{unavailable} out of service, {limit} allowed"
_OPERATOR: Final = "{reason|bare}. {remedy|bare}"
_DRIFT: Final = "{nodes} launched with another {differences}: they are"
_PLACE: Final = "{nodes} nodes of {scope} {within}"
_SAME: Final = "{nodes} nodes with {kind}[ {code}]"
_NAMED: Final = "{reason|bare}[. Nodes: {named}]"
_SETUP: Final = "setup {command}/{commands}"
_CALL: Final = "{call} failed with {code}: {message|bare}. It is treated as {treated_as}"
_LATER: Final = "; further errors with this code are not reported"
_CLASSIFY: Final = "act on the provider's message, and report the code so that it is classified"
_LAG: Final = "check that its service runs, and whether one replica is enough"
_HTTP: Final = "{change} as {role} from {address}[: {reason}]"
_ORDER: Final = "{order}[ {content}][: {reason}]"
_STOPPED: Final = (
    "{scope}: nothing automatic begins[ until {until:%m-%d %H:%M} UTC]: {reason}[, by {by}]"
)
_RESUME: Final = "to go on: navarch resume[ --pool {pool}][ --provider {provider}]"
UNCONFIRMED: Final = "without confirmation: work may be left on the node"

EVENT_TEXTS: Final[Mapping[type[Message], Sequence[EventWording]]] = {
    # --- nodes
    n.Fault: [_text("fault", "=fault", "bad")],
    n.ConditionEnded: [_text("condition over", "{condition}: {message}", "good")],
    n.Registered: [_text("registered", "{gpus|count} GPUs[ on {hostname}]", "good")],
    n.ProviderNotice: [
        _text("notice withdrawn", _NOTICE, "good", withdrawn=True),
        _text("notice", _NOTICE, "bad"),
    ],
    n.BootChecked: [
        _text("boot checks passed", "=passed", "good", ok=True),
        _text("boot checks failed", "=failed", "bad"),
    ],
    n.Verdict: [
        _text("health unknown", "=verdict", "bad", status="unknown"),
        _text("healthy", "=verdict", "good", status="healthy"),
        _text("{status}", "=verdict", "bad"),
    ],
    n.Lost: [
        _text(
            "lost", "its credentials expired, and were not renewed", "bad", credentials_expired=True
        ),
        _text(
            "lost", "heartbeats stopped; it is rebooted or replaced if they do not resume", "bad"
        ),
    ],
    n.Returned: [_text("returned", "heartbeats resumed", "good")],
    n.Admitted: [
        _text("admitted", "as a spare", "good", spare=True),
        _text("admitted", "in service", "good"),
    ],
    n.MachineRefused: [_text("second machine refused", "{reason}", "bad", _REMEDY)],
    n.IdentityChanged: [
        _text("identity changed", "{reason}", "bad", _REMEDY, status="changed"),
        _text("identity {status}", "{reason}[ by {by}]", "good"),
    ],
    n.DrillStarted: [
        _text("drill", "{kind}[ {code}], which {reach}s[, by {by}]", "plain", _REMEDY),
    ],
    n.Promoted: [
        _text(
            "promoted", "the spare is in service, in place of {instead_of}", "good", instead_of=True
        ),
        _text("promoted", "the spare is in service, the pool grew", "good"),
    ],
    n.Cordoned: [_text("cordoned", "{reason}")],
    n.Uncordoned: [_text("uncordoned", "{reason}", "good")],
    n.NodeHeld: [_text("held", "until {until:%m-%d %H:%M} UTC[ by {by}]: {reason}")],
    n.Released: [_text("released", "{reason}[ by {by}]")],
    n.WorkRemains: [_text("drain", "=work")],
    n.CheckpointRequested: [_text("checkpoint", "=checkpoint")],
    n.OwnersNotified: [_text("owners notified", "=owners")],
    n.OwnerNoticeFailed: [
        _text("owner not notified", "{owner}: {reason}; the drain goes on", "bad", owner=True),
        _text("owners not notified", "{reason}; the drain goes on", "bad"),
    ],
    n.WorkLeft: [_text("work left", "the workload system called back[ by {by}]")],
    n.WorkloadState: [
        _text("workload system", "=state", "plain", ready=True),
        _text("workload system", "=state", "bad"),
    ],
    n.WorkGangs: [
        _text("jobs on several nodes", "{gangs}", "plain", gangs=True),
        _text("jobs on several nodes", "none"),
    ],
    n.WorkFailed: [_text("job failed", "=failed_work", "bad")],
    n.Drained: [
        _text("drained", "the wait ended with work left on the node", "bad", expired=True),
        _text("drained", "no work left", "plain", waited=True),
        _text("drained", UNCONFIRMED),
    ],
    n.Terminated: [_text("terminated", "its instance is gone or being removed, or becomes a leak")],
    n.Remediated: [
        _text("GPUs reset", _BACK, "good", outcome="recovered", remediation="reset-gpu"),
        _text("rebooted", _BACK, "good", outcome="recovered"),
        _text("{remediation} cancelled", f"{{reason}}{_ATTEMPT}", "plain", outcome="cancelled"),
        _text("{remediation} failed", f"at {{step}}: {{reason}}{_ATTEMPT}", "bad"),
    ],
    n.Repaired: [_text("repaired", "=repaired", "good")],
    n.CredentialsIssued: [_text("credentials issued", "to its agent, for key {key:.9}…")],
    n.CredentialsRefused: [_text("credentials refused", "{reason}", "bad")],
    n.BusAccess: [
        _text(
            "disconnected", "{reason}; to readmit it: navarch readmit {node}", "bad", refused=True
        ),
        _text("readmitted", "[by {by}]"),
    ],
    n.SetupRan: [
        _text(
            _SETUP,
            "{text}: exit {exit_status} after {duration_seconds:.1f} s",
            "plain",
            exit_status=0,
        ),
        _text(_SETUP, "=setup", "bad"),
    ],
    # --- pools
    p.Scaled: [_text("scaled", "{previous} -> {nodes} nodes. {reason}")],
    p.ScaleRefused: [_text("refused", "scale ({refusal}): {reason}", "bad")],
    p.RequestAccepted: [_text("accepted", "{verb}[ {node}][, saga {saga}][. {note}]", "good")],
    p.RequestRefused: [_text("refused", "{verb}[ {node}] ({refusal}): {reason}", "bad")],
    p.PoolRemoved: [_text("removed", "its last instance is terminated and its record is deleted")],
    p.BreakerOpened: [
        _text(
            "breaker opened",
            f"{{breaker_cause|cause}}[ by {{by}}]: {_USED}[. Waiting: {{waiting}}]",
            "bad",
        )
    ],
    p.BreakerHalfOpened: [_text("breaker half-open", "{saga} is the probe: {reason}")],
    p.BreakerClosed: [_text("breaker closed", f"[by {{by}}: ]{_USED}", "good")],
    p.QuarantineFull: [
        _text("quarantine full: opened", "{reason}", "bad", _REMEDY, status="opened"),
        _text("quarantine full: closed", "{reason}", "good", _REMEDY),
    ],
    p.PoolCondition: [
        _text("{condition}: opened", "{reason}", "bad", _REMEDY, status="opened"),
        _text("{condition}: closed", "{reason}", "good", _REMEDY),
    ],
    p.OnDemandShort: [
        _text("too few on demand: opened", "{reason}", "bad", _REMEDY, status="opened"),
        _text("too few on demand: closed", "{reason}", "good", _REMEDY),
    ],
    p.Incident: [
        _text(
            f"incident opened: {_PLACE}",
            f"{_NAMED}. navarch list --pool {{pool}}",
            "bad",
            status="opened",
            within=True,
        ),
        _text(
            f"incident opened: {_SAME}",
            f"{_NAMED}. navarch list --pool {{pool}}",
            "bad",
            status="opened",
        ),
        _text(f"incident closed: {_PLACE}", _NAMED, "good", within=True),
        _text(f"incident closed: {_SAME}", _NAMED, "good"),
    ],
    p.SagaOpened: [
        _text("saga opened", "{kind} {node}[ -> {new_node}]: {reason}", "plain", node=True),
        _text("saga opened", "{kind} {new_node}: {reason}"),
    ],
    p.WouldStart: [
        _text("would begin", "{kind} of {node}: {reason}", "plain", node=True),
        _text("would begin", "{kind} of {nodes} nodes: {reason}"),
    ],
    p.NodesDrifted: [
        _text("nodes drifted", f"{_DRIFT} replaced at leisure", "plain", replaced=True),
        _text("nodes drifted", f"{_DRIFT} only reported"),
    ],
    p.NodeRefused: [
        _text("not admitted", "attempt {attempt} of {attempts}: {reason}", "bad", _REMEDY)
    ],
    p.NodeReplaced: [
        _text(
            "replaced",
            "by {promoted}, a spare; {new_node} is the new spare, after "
            "{duration_seconds:.1f} s. {reason}",
            "good",
            promoted=True,
        ),
        _text("replaced", "by {new_node} in {duration_seconds:.1f} s. {reason}", "good"),
    ],
    p.SagaFailed: [
        _text(
            "saga failed",
            "at {step}, and undone: {reason}[; next try in {retry_seconds:g} s]",
            "bad",
        )
    ],
    p.SagaCancelled: [_text("saga cancelled", "at {step}: {reason}[; then {then}]")],
    p.SagaIsStuck: [_text("saga stuck", "at {step}: {reason}", "bad", _REMEDY)],
    p.SagaOverdue: [_text("saga overdue", "at {step}: {reason}", "bad", _REMEDY)],
    p.OperatorNeeded: [
        _text("operator needed", _OPERATOR, "bad", removed=True),
        _text(
            "operator needed",
            f"{_OPERATOR}. The node stays cordoned until then",
            "bad",
            cordoned=True,
        ),
        _text("operator needed", f"{_OPERATOR}. The node stays in service until then", "bad"),
    ],
    p.InstanceLeaked: [
        _text(
            "leaked",
            "still at {provider}[ ({provider_id})][, ${dollars_per_hour:g} an hour]: {reason|bare}",
            "bad",
        )
    ],
    p.RemovalAnswered: [
        _text(
            "removal held",
            "{provider_id} at {provider} is held back ({gate}): {reason}",
            "bad",
            gate=True,
        ),
        _text("removal granted", "{provider_id} at {provider}: {reason}"),
    ],
    p.InstanceIdCorrected: [
        _text("ID corrected", "{provider} lists it as {provider_id}, and no longer as {previous}")
    ],
    p.LaunchRefused: [_text("launch refused", "{refusal}: {reason}", "bad", _REMEDY)],
    p.LaunchWaiting: [
        _text("launch waits", "[at least until {until:%m-%d %H:%M:%S} UTC: ]{reason}", "bad")
    ],
    # --- the fleet's services
    f.AutomationStopped: [
        _text("stopped", _STOPPED, "bad", _RESUME, status="stopped"),
        _text("resumed", "{scope}[: {reason}][, by {by}]", "good"),
    ],
    f.ConsumerLag: [
        _text("lagging", "{stream}: {reason}", "bad", _LAG, status="lagging"),
        _text("caught up", "{stream}: {reason}", "good"),
    ],
    f.UnknownError: [
        _text("unknown error", f"{_CALL}{_LATER}", "bad", _CLASSIFY, treated_as="TRANSIENT"),
        _text(
            "unknown error", f"{_CALL}, judged by its HTTP status alone{_LATER}", "bad", _CLASSIFY
        ),
    ],
    f.ServiceFailure: [
        _text("failing", "{service}: {reason}", "bad", _REMEDY, status="failing"),
        _text("works again", "{service}: it failed because {reason}", "good"),
    ],
    f.HttpChange: [
        _text("HTTP change {outcome}", _HTTP, "plain", outcome=("accepted", "unanswered")),
        _text("HTTP change {outcome}", _HTTP, "bad"),
    ],
    f.OrderAnswered: [
        _text("order {outcome}", _ORDER, "bad", reason=True),
        _text("order {outcome}", _ORDER),
    ],
    # --- sagas
    s.SagaStarted: [
        _text(
            "saga started",
            "{kind} {params.node}[ -> {params.new_node}]: {params.reason}",
            "plain",
            params__node=True,
        ),
        _text("saga started", "{kind} {params.new_node}: {params.reason}"),
    ],
    s.SagaUnwinding: [_text("saga unwinding", "at {step}: {reason}", "bad")],
    s.SagaDone: [_text("saga done", "", "good")],
    s.SagaUnwound: [_text("saga unwound", "{reason}", "bad")],
    s.SagaStuck: [_text("saga stuck", "{reason}", "bad", _REMEDY)],
    s.SagaRetried: [_text("saga retried", "at {step}. {reason}")],
    s.StepStarted: [_text("{step} started")],
    s.StepOverdue: [
        _text("{step} overdue", "it takes longer than expected, and is still waited for", "bad")
    ],
    s.StepSucceeded: [_text("{step} succeeded", "=outputs", "good")],
    s.StepFailed: [_text("{step} failed", "[{error} ]{reason}", "bad")],
    s.StepExpired: [
        _text("{step} expired", "{reason}", "bad", reason=True),
        _text("{step} expired", "its deadline passed", "bad"),
    ],
    s.UndoStarted: [_text("{step} undo started")],
    s.UndoSucceeded: [_text("{step} undone")],
    s.UndoFailed: [_text("{step} undo failed", "{reason}", "bad", _REMEDY)],
}
"""Event class -> its texts."""
ABOUT: Final[Mapping[type[Message], str]] = {
    n.NodeEvent: "{pool}/{node}",
    p.PoolEvent: "{pool}",
    s.SagaEntry: "{saga}",
    **dict.fromkeys((p.SagaOpened, p.SagaFailed, p.SagaCancelled), "{saga}"),
    **dict.fromkeys((p.SagaIsStuck, p.SagaOverdue), "{saga}"),
    p.NodeReplaced: "{pool}/{old_node}",
    **dict.fromkeys(
        (p.InstanceLeaked, p.InstanceIdCorrected, p.RemovalAnswered), "{pool}/{instance}"
    ),
    **dict.fromkeys((p.NodeRefused, p.OperatorNeeded), "{pool}/{node}"),
    **dict.fromkeys((p.LaunchRefused, p.LaunchWaiting), "{pool}/{node}"),
    f.ConsumerLag: "{durable}",
    f.UnknownError: "{provider}",
    f.ServiceFailure: "{about}",
    f.AutomationStopped: "{scope}",
    **dict.fromkeys((f.HttpChange, f.OrderAnswered), "{by}"),
}
"""Event class, or the class of all of a family -> what it is about."""
