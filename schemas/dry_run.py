"""Dry runs say what a request would do, and change nothing."""

import msgspec

from schemas.enums import Refusal
from schemas.node_work import OwnedWork


class DryRunRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Requests a dry run of one request (`query.dry_run`)."""

    verb: str
    """Any verb of `schemas.operations.REQUESTS`."""
    node: str = ""
    """The node, of a request about one: its pool is found by it."""
    pool: str = ""
    """The pool of any other request."""
    request: msgspec.Raw = msgspec.Raw(b"{}")
    """The request's other fields, as they would be published."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One condition that can prevent the saga."""

    name: str
    passed: bool
    detail: str = ""
    automation_only: bool = False
    """It limits automation only, not requests of operators."""


class DryRunStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the saga that would start."""

    step: str
    deadline_seconds: float | None = None
    """None: no deadline."""
    undone: bool = False
    """Whether unwinding undoes this step."""
    final: bool = False
    """The pivot: after it the saga cannot be cancelled."""


class DryRunOffering(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what would be launched, and where."""

    provider: str
    region: str
    zones: tuple[str, ...] = ()
    instance_type: str
    gpu_count: int = 0


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what the request would do."""

    verb: str
    node: str = ""
    """Empty for a request that is about no single node."""
    pool: str
    accepted: bool
    refusal: Refusal | None = None
    reason: str = ""
    """Why it would be refused, and what would be accepted."""
    nodes: int | None = None
    """The desired size that the request would set; `desired` is the size until then."""
    note: str = ""
    """A consequence that the operator may not expect."""
    saga: str = ""
    gates: tuple[Gate, ...] = ()
    steps: tuple[DryRunStep, ...] = ()
    leaves: str = ""
    """What remains if the saga is unwound."""
    new_node: str = ""
    promotes: str = ""
    """The spare that would replace the node."""
    order: str = ""
    drain: str = ""
    offering: DryRunOffering | None = None
    """The offering that would be launched."""
    unavailable: int = 0
    unavailable_limit: int = 0
    disruptions: int = 0
    disruptions_limit: int = -1
    """-1: no limit."""
    owners: tuple[OwnedWork, ...] = ()
    """Whose work it would end, as the workload system says now."""
    owners_unknown: str = ""
    """Why it is not known whose work it would end; empty: `owners` are those that are listed."""
    desired: int = 0
    counted: str = "nodes"
    """What the budget counts: `nodes`, or `racks` where they are units."""
