"""What people publish to `navarch.v1.pool.<pool>.request.<verb>`, and what queries answer.

A request is typed by hand (`nats pub … '{"nodes": 5}'`), so it needs no `type`, `id` or `time`; its
id is the stream sequence it was stored under. Unknown keys are refused: a typing error in a request
must not pass as a default.
"""

from typing import Annotated, Any, Literal

import msgspec

from schemas.duration import Duration
from schemas.enums import DrainMode
from schemas.messages import Record, UtcTime

Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every request may carry."""

    by: str = ""
    """Who asks, for the record."""
    request: str = ""
    """The asker's own id, echoed in the answer's event as `request`."""


class ScaleRequest(Request, frozen=True, kw_only=True):
    """Bring the pool to this many nodes."""

    nodes: Count


class NodeRequest(Request, frozen=True, kw_only=True):
    """Cordon, uncordon, drain, replace or reboot one node, or reset its GPUs."""

    node: str
    reason: str = ""


class DrainRequest(NodeRequest, frozen=True, kw_only=True):
    """Drain, replace, reset or reboot one node, and how long its work is waited for."""

    mode: DrainMode | Literal[""] = ""
    """Empty: as the pool says; with a `timeout`, deadline."""
    timeout: Duration | None = None
    """`10m`; None: the pool's drain_timeout."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.mode == "immediate" and self.timeout is not None:
            raise ValueError("mode immediate does not wait, so it takes no timeout")


class HoldRequest(Request, frozen=True, kw_only=True):
    """Let nothing automatic take a node out of service for a while."""

    node: str
    for_: Duration = msgspec.field(name="for")
    """At most seven days; it ends by itself."""
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class SagaRequest(Request, frozen=True, kw_only=True):
    """Cancel a saga, retry one that is stuck, or have one that drains wait no longer."""

    saga: str
    reason: str = ""


class BreakerRequest(Request, frozen=True, kw_only=True):
    """Open the pool's breaker, and keep it open; or close it."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class ApplyRequest(Request, frozen=True, kw_only=True):
    """Make the pool, or change it; refused where the configuration has one of its name."""

    spec: dict[str, Any]
    """As under `pools:` in the configuration, and checked by the same code."""
    nodes: Count | None = None
    """How many; None: min_nodes, or as many as it had."""
    reason: str = ""


class RemoveRequest(Request, frozen=True, kw_only=True):
    """Let every node of the pool leave, then forget the pool."""

    mode: DrainMode | Literal[""] = ""
    """How work is waited for; empty: as the pool says, or with a `timeout`, deadline."""
    timeout: Duration | None = None
    reason: str = ""


REQUESTS: dict[str, type[Request]] = {
    "scale": ScaleRequest,
    "apply": ApplyRequest,
    "remove": RemoveRequest,
    "cordon": NodeRequest,
    "uncordon": NodeRequest,
    "drain": DrainRequest,
    "replace": DrainRequest,
    "reset-gpu": DrainRequest,
    "reboot": DrainRequest,
    "hold": HoldRequest,
    "release": NodeRequest,
    "cancel": SagaRequest,
    "retry": SagaRequest,
    "proceed": SagaRequest,
    "breaker-open": BreakerRequest,
    "breaker-close": BreakerRequest,
}
"""Verb -> payload."""


class CompletedRequest(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A request that was carried out, so that an earlier one is not carried out after it."""

    sequence: int
    at: UtcTime
    """When it was stored."""
    verb: str
    about: str
    """`size`, `breaker`, `pool`, `node <node>` or `hold <node>`."""
    saga: str = ""
    """What it has begun."""
