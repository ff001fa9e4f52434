"""Declares the arguments of each tool. Pure; the protocol's JSON schemas are made of these."""

from typing import Annotated, Final, Literal

import msgspec

from schemas.operator_requests import Count

NODES_MAX: Final = 200
ROWS_MAX: Final = 500
TEXT_CHARS_MAX: Final = 500

ChangeVerb = Literal["cordon", "uncordon", "drain", "replace", "terminate", "scale"]

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Selector = Annotated[str, msgspec.Meta(max_length=200)]
OnlyPool = Annotated[str, msgspec.Meta(max_length=200, description="Only this pool.")]
OnlyNode = Annotated[str, msgspec.Meta(max_length=200, description="Only this node.")]
SinceText = Annotated[
    str, msgspec.Meta(max_length=40, description="A duration before now (10m, 24h, 7d) or a time.")
]
RowLimit = Annotated[
    int, msgspec.Meta(ge=1, le=ROWS_MAX, description="How many; the newest are kept.")
]


class NoArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Declares that a tool has no arguments."""


class NodeSelection(NoArguments, frozen=True, kw_only=True):
    """Selects which nodes are listed."""

    pool: OnlyPool = ""
    provider: Selector = ""
    region: Selector = ""
    zone: Selector = ""
    status: Annotated[
        str, msgspec.Meta(description="launching, registered, active, leaving or terminated.")
    ] = ""
    health: Annotated[str, msgspec.Meta(description="healthy, degraded or unhealthy.")] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=NODES_MAX)] = 50
    cursor: Annotated[
        str, msgspec.Meta(max_length=200, description="`next` of the answer before.")
    ] = ""


class NodeName(NoArguments, frozen=True, kw_only=True):
    """Names the node that is asked about."""

    node: Name


class AnyName(NoArguments, frozen=True, kw_only=True):
    """Names one node, pool or saga."""

    name: Annotated[
        str, msgspec.Meta(min_length=1, max_length=200, description="A node, pool or saga.")
    ]


class PoolSelection(NoArguments, frozen=True, kw_only=True):
    """Selects one pool, or all."""

    pool: OnlyPool = ""


class TimelineSelection(NoArguments, frozen=True, kw_only=True):
    """Selects one node's history."""

    node: Name
    limit: RowLimit = 100


class EventSelection(NoArguments, frozen=True, kw_only=True):
    """Selects which events are listed."""

    since: SinceText = "1h"
    pool: OnlyPool = ""
    node: OnlyNode = ""
    limit: RowLimit = 100


class OfferingSelection(NoArguments, frozen=True, kw_only=True):
    """Selects which offerings are listed."""

    pool: OnlyPool = ""
    provider: Selector = ""
    instance_type: Selector = ""


class ReportPeriod(NoArguments, frozen=True, kw_only=True):
    """Selects since when, and which pool."""

    since: SinceText = "7d"
    pool: OnlyPool = ""


class PlannedChange(NoArguments, frozen=True, kw_only=True):
    """A change to plan."""

    verb: ChangeVerb
    name: Annotated[
        str, msgspec.Meta(min_length=1, max_length=200, description="The node; of scale: the pool.")
    ]
    nodes: Annotated[
        Count | None, msgspec.Meta(description="Of scale, and of it alone: the desired size.")
    ] = None
    reason: Annotated[
        str, msgspec.Meta(max_length=TEXT_CHARS_MAX, description="Why; shown in the events.")
    ] = ""
    mode: Annotated[
        Literal["", "deadline", "wait", "immediate"],
        msgspec.Meta(description="Of drain, replace and terminate: how to wait for its work."),
    ] = ""
    timeout: Annotated[
        str,
        msgspec.Meta(
            max_length=20, description="Of drain, replace and terminate: at most, as in 10m."
        ),
    ] = ""


class Confirmation(NoArguments, frozen=True, kw_only=True):
    """A plan that its reader has agreed to."""

    token: Annotated[
        str, msgspec.Meta(min_length=1, max_length=200, description="`token` of the plan.")
    ]
