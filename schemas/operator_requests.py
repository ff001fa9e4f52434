"""Declares the requests of operators, on `navarch.v1.pool.<pool>.request.<verb>`.

An operator may type a request (`nats pub … '{"nodes": 5}'`), so it needs no `type`, `id` or `time`;
its ID is its sequence in the stream. Unknown keys are refused, so that a typing error does not pass
as a default.
"""

import re
from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.enums import DrainMode
from schemas.messages import Record
from schemas.value_limits import Int, UtcTime

WORKLOAD_NAMES_MAX: Final = 2_000
"""Of one pool: some 120 bytes each in its record."""

REASON_CHARS_MAX: Final = 500
"""A saga's reason is in its pool's record for as long as the saga is open."""

BATCH_PREFIX: Final = "batch-"
"""Begins the IDs of requests that are one order about many nodes."""
BATCH: Final = re.compile(rf"{BATCH_PREFIX}[0-9a-f]{{16}}(?=-)")

Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
Reason = Annotated[str, msgspec.Meta(max_length=REASON_CHARS_MAX)]
GivenReason = Annotated[str, msgspec.Meta(min_length=1, max_length=REASON_CHARS_MAX)]


def batch_of(request: str) -> str:
    """Return how the IDs of all requests of one order begin; empty: it is about one thing."""
    found = BATCH.match(request)
    return found[0] if found else ""


class Request(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Declares the fields of every request."""

    by: str = ""
    """The operator, for the log."""
    request: str = ""
    """The sender's own ID, returned in the reply event as `request`."""


class ScaleRequest(Request, frozen=True, kw_only=True):
    """Set the pool's desired size."""

    nodes: Count


class NamesRequest(Request, frozen=True, kw_only=True):
    """Have, or no longer have, nodes of these names of the workload system."""

    names: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=63)], ...],
        msgspec.Meta(min_length=1, max_length=WORKLOAD_NAMES_MAX),
    ]


class NodeRequest(Request, frozen=True, kw_only=True):
    """Cordon, uncordon, drain, replace or reboot one node, or reset its GPUs."""

    node: str
    reason: Reason = ""
    """At most 500 characters."""


class DrainRequest(NodeRequest, frozen=True, kw_only=True):
    """Drain, replace, reset, reboot or terminate one node, with a limit on the drain."""

    mode: DrainMode | Literal[""] = ""
    """Empty: the pool's mode; with a `timeout`: deadline."""
    timeout: Duration | None = None
    """`10m`; None: the pool's drain_timeout."""

    def __post_init__(self) -> None:
        """Refuse contradicting fields."""
        if self.mode == "immediate" and self.timeout is not None:
            raise ValueError("mode immediate does not wait, so it takes no timeout")


class HoldRequest(Request, frozen=True, kw_only=True):
    """Keep automation from disrupting a node for a while."""

    node: str
    for_: Duration = msgspec.field(name="for")
    """At most seven days, after which the hold expires."""
    reason: GivenReason
    """At most 500 characters."""


class SagaRequest(Request, frozen=True, kw_only=True):
    """Cancel a saga, retry a stuck one, or end the wait of one that drains."""

    saga: str
    reason: Reason = ""
    """At most 500 characters."""


class BreakerRequest(Request, frozen=True, kw_only=True):
    """Open the pool's breaker and keep it open, or close it."""

    reason: GivenReason
    """At most 500 characters."""


class ApplyRequest(Request, frozen=True, kw_only=True):
    """Create or change a pool; refused for a pool of the configuration."""

    spec: dict[str, Any]
    """As under `pools:` in the configuration, with the same validation."""
    nodes: Count | None = None
    """Desired size; None: min_nodes, or the current size."""
    reason: Reason = ""
    """At most 500 characters."""


class RemoveRequest(Request, frozen=True, kw_only=True):
    """Remove every node of the pool, then the pool."""

    mode: DrainMode | Literal[""] = ""
    """Empty: the pool's drain mode; with a `timeout`: deadline."""
    timeout: Duration | None = None
    reason: Reason = ""
    """At most 500 characters."""


class CompletedRequest(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A request that was carried out; earlier ones about the same thing are superseded."""

    sequence: Int
    at: UtcTime
    """When it was stored."""
    verb: str
    about: str
    """`size`, `breaker`, `pool`, `node <node>` or `hold <node>`."""
    saga: str = ""
    """The saga it started."""
