"""Finds what a stream has lost between two observations, what that means and what to do. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from schemas.fleet_queries import CurrentFailure
from schemas.stream_specs import StreamSpec
from schemas.topology import (
    ALERTS,
    ANSWERS,
    DEAD,
    EVENTS,
    EVIDENCE,
    HARDWARE,
    HEALTH,
    HEARTBEATS,
    INSTANCES,
    INTAKE,
    LEASES,
    NODES,
    OFFERINGS,
    POOLS,
    REPAIRS,
    REQUESTS,
    SAGAS,
    SINKS,
    TELEMETRY,
    TIMERS,
)

SHOWN: Final = timedelta(hours=1)
"""How long a loss is shown: nothing that a service could observe ends it."""
NOTHING_TO_DO: Final = "find out who removed it (`nats stream rm`, `nats stream restore`)"
LOSSES: Final[dict[str, tuple[str, str]]] = {
    EVENTS.name: (
        "events that no service had processed are lost, faults among them",
        (
            "read what the kernels logged meanwhile: `journalctl -k | navarch-agent parse` on each "
            "node, and `navarch replace NODE` what is unhealthy and not in `navarch status`"
        ),
    ),
    INTAKE.name: ("facts that agents sent in that moment are lost", NOTHING_TO_DO),
    REQUESTS.name: (
        "requests without an answer are lost",
        "send them again: `navarch events --since 10m` shows which were answered",
    ),
    SAGAS.name: (
        "open sagas begin again within five seconds; a step may be performed once more",
        "see that they end: `navarch saga list`",
    ),
    TIMERS.name: (
        (
            "deadlines of sagas are read from their logs; degraded nodes are reviewed within five "
            "minutes of the end of what degraded them"
        ),
        NOTHING_TO_DO,
    ),
    f"KV_{POOLS.name}": (
        "pools of the configuration are recorded again with the nodes they have",
        (
            "apply requested pools and sizes again (`navarch up`, `navarch scale`), and compare "
            "`navarch status`"
        ),
    ),
    f"KV_{NODES.name}": (
        "nodes are recorded again from INSTANCES, SAGAS and EVENTS",
        (
            "compare `navarch list` with `navarch instances`, and set holds that are missing with "
            "`navarch hold NODE`"
        ),
    ),
    f"KV_{HEALTH.name}": (
        (
            "the health of nodes is recorded again from NODES; verdicts of the last moments and "
            "faults that were not enough for one are lost"
        ),
        (
            "look at nodes whose faults are recent: `navarch why NODE`; `navarch replace NODE` "
            "what should go"
        ),
    ),
    f"KV_{INSTANCES.name}": (
        "instances of known nodes are recorded again by the next sweep; others are orphans",
        "look at `navarch leaked`, then `navarch sweep --adopt NODE` or `--terminate NODE`",
    ),
    f"KV_{HARDWARE.name}": (
        "GPUs and hosts of the denylist may be admitted",
        "add them again: `navarch hardware list`, `navarch hardware add`",
    ),
    f"KV_{OFFERINGS.name}": ("prices and blocked offerings are learned again", NOTHING_TO_DO),
    f"KV_{HEARTBEATS.name}": ("agents send the next heartbeats within seconds", NOTHING_TO_DO),
    f"KV_{LEASES.name}": ("leases are acquired again within seconds", NOTHING_TO_DO),
    f"KV_{REPAIRS.name}": ("totals of repairs are counted again from EVENTS", NOTHING_TO_DO),
    f"KV_{ALERTS.name}": ("alerts sent before do not end by themselves", "end them by hand"),
    f"KV_{ANSWERS.name}": ("what pools wait for is stored again within seconds", NOTHING_TO_DO),
    EVIDENCE.stream_name: (
        "evidence is lost",
        "request it again while EVENTS has the history: `navarch evidence NODE`",
    ),
    TELEMETRY.name: ("samples of the last minutes are lost", NOTHING_TO_DO),
    DEAD.name: ("dead letters are lost", NOTHING_TO_DO),
    SINKS.name: (
        "events that readers of event sinks had not read are lost there",
        "have them read what EVENTS has: `navarch events --since 7d`",
    ),
}
"""Stream -> what its loss means, and what an operator does."""
EMPTIED_UNNOTICED: Final = frozenset(
    {each.name for each in (INTAKE, REQUESTS, TIMERS, SAGAS, TELEMETRY, DEAD, SINKS)}
    | {f"KV_{each.name}" for each in (LEASES, HEARTBEATS, ALERTS, OFFERINGS, ANSWERS)}
)
"""Streams that lose all their messages in normal operation."""


@dataclass(frozen=True, slots=True)
class ObservedStream:
    """A stream as it was observed."""

    created: str
    first: int
    last: int
    messages: int
    used_bytes: int = 0


def read_state(info: dict[str, Any]) -> ObservedStream:
    """Read the server's answer to `STREAM.INFO`."""
    state = info["state"]
    return ObservedStream(
        created=str(info["created"]),
        first=int(state["first_seq"]),
        last=int(state["last_seq"]),
        messages=int(state["messages"]),
        used_bytes=int(state["bytes"]),
    )


def is_expendable(spec: StreamSpec) -> bool:
    """Return whether a stream may lose what it has whenever a server restarts."""
    return spec.in_memory or spec.replicas_one


def loss_between(spec: StreamSpec, before: ObservedStream | None, now: ObservedStream) -> str:
    """Say what happened to a stream between two observations; empty: nothing that loses data."""
    if is_expendable(spec) or before is None or before.last == 0:
        return ""
    if now.created != before.created:
        return "was deleted and created again"
    if now.last < before.last:
        return f"was rolled back from message {before.last} to {now.last}"
    emptied = now.first > before.last and now.messages < before.messages
    if emptied and spec.name not in EMPTIED_UNNOTICED:
        return f"lost all {before.messages} messages that it had"
    return ""


def store_lost(stream: str, what: str, at: datetime) -> CurrentFailure:
    """The failure that reports a loss."""
    meaning, remedy = LOSSES[stream]
    return CurrentFailure(
        failure="store-lost",
        about=f"stream {stream}",
        reason=f"it {what} at {at:%Y-%m-%d %H:%M:%S}Z while the fleet ran: {meaning}",
        remedy=remedy,
    )
