"""Declares what callers send with changes: the bodies of POST requests. Pure."""

from typing import Annotated, Any, Final, get_args

import msgspec

from schemas.agent_commands import DiagnoseRequest
from schemas.alert_records import KEY_CHARS_MAX, SilenceSeconds
from schemas.drill_orders import DrillCode, GpuIndex
from schemas.duration import TEXT_PATTERN
from schemas.enums import DrainMode, DrillKind, HardwareKind
from schemas.identity_orders import Claim
from schemas.operator_requests import Count, GivenReason, Reason
from schemas.value_limits import NAME_CHARS_MAX, Name, OptionalSagaToken, OptionalToken, UtcTime

DIAGNOSE_SECONDS_MIN: Final = 1.0
DIAGNOSE_SECONDS_MAX: Final = 600.0
"""How long a caller may wait for what a diagnosis finds."""


def described(**schema: Any) -> msgspec.Meta:
    """Describes a value that is checked elsewhere, with a better message."""
    return msgspec.Meta(extra_json_schema={"extra": schema})


ORPHANS_MAX: Final = 1_000
"""Named in one sweep."""
Orphans = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)], ...],
    msgspec.Meta(max_length=ORPHANS_MAX),
]
Mode = Annotated[str, described(enum=["", *get_args(DrainMode)])]
Timeout = Annotated[str, described(pattern=f"{TEXT_PATTERN}|^$")]


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller sends."""


class ReasonBody(_Body, frozen=True, kw_only=True):
    """Gives the reason, which the events show."""

    reason: Reason = ""


class DrainBody(ReasonBody, frozen=True, kw_only=True):
    """Says how to wait for the work."""

    mode: Mode = ""
    """deadline, wait or immediate; empty: the pool's."""
    timeout: Timeout = ""
    """`10m`; empty: the pool's."""


class HoldBody(_Body, frozen=True, kw_only=True):
    """Keep automation off a node."""

    for_: Annotated[str, described(pattern=TEXT_PATTERN)] = msgspec.field(name="for")
    """`2h`; at most seven days."""
    reason: GivenReason


class ScaleBody(_Body, frozen=True, kw_only=True):
    """Sets the pool's desired size."""

    nodes: Count


class BreakerBody(_Body, frozen=True, kw_only=True):
    """Gives the reason, which other operators are shown."""

    reason: GivenReason


class UpBody(ReasonBody, frozen=True, kw_only=True):
    """A pool to create or change."""

    spec: dict[str, Any]
    """As under `pools:` in the configuration."""
    nodes: Count | None = None


class AcknowledgeBody(ReasonBody, frozen=True, kw_only=True):
    """An open alert to take on; the reason is shown in every channel."""

    alert: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_CHARS_MAX)]
    """Its key."""


class AlertUpdateBody(_Body, frozen=True, kw_only=True):
    """An open alert to silence, assign or annotate; the note is shown in every channel."""

    alert: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_CHARS_MAX)]
    """Its key."""
    silence_seconds: SilenceSeconds = 0
    """For how long channels are sent no news of it; 0: as it is."""
    assign_to: Name = ""
    """Who is to look after it; empty: as it is."""
    note: Annotated[str, msgspec.Meta(max_length=500)] = ""


class HardwareBody(_Body, frozen=True, kw_only=True):
    """Names a GPU or a host."""

    kind: HardwareKind
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    """The UUID of a GPU, a serial number, or a host as `PROVIDER/IDENTITY`."""


class ListedHardwareBody(HardwareBody, frozen=True, kw_only=True):
    """A GPU or a host that is not to be admitted again."""

    reason: GivenReason
    node: Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)] = ""
    """The node that had it."""


class IdentityBody(_Body, frozen=True, kw_only=True):
    """Names the identity to accept, as the node was shown."""

    claim: Claim
    """The node's `identity_claim`."""


class DrillBody(_Body, frozen=True, kw_only=True):
    """Names the fault of a drill, and how far the drill goes."""

    kind: DrillKind
    code: DrillCode = 0
    """XID or SXID; 0 for the other kinds."""
    subcode: Name = ""
    gpu: GpuIndex = 0
    act: bool = False
    """Do all that the health policy demands; else the node is cordoned and drained."""


class SweepBody(_Body, frozen=True, kw_only=True):
    """Names the orphans that a sweep is also to resolve."""

    adopt: Orphans = ()
    """They become nodes of their pools."""
    terminate: Orphans = ()


class ScopeBody(_Body, frozen=True, kw_only=True):
    """Names a part of the fleet: a pool or a provider; neither: the whole."""

    pool: OptionalToken = ""
    provider: Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX)] = ""


class StopBody(ScopeBody, frozen=True, kw_only=True):
    """Says what must not begin by itself, for how long, and why."""

    running: bool = False
    """Open sagas wait, too, before their pivot and each step that has no undo."""
    until: UtcTime | None = None
    """When it ends by itself; empty: a resume ends it."""
    reason: GivenReason


class ResumeBody(ScopeBody, frozen=True, kw_only=True):
    """Says which stop ends, and why."""

    reason: Reason = ""


class WorkloadCheckBody(_Body, frozen=True, kw_only=True):
    """Says what to try in a pool's workload system."""

    node: OptionalToken = ""
    """Also cordon this node, and uncordon it at once; empty: change nothing."""


class WorkDoneBody(_Body, frozen=True, kw_only=True):
    """Names the drain that the work has left."""

    saga: OptionalSagaToken = ""
    """Empty: whichever works on the node now."""


BODIES: Final = (
    *(ReasonBody, DrainBody, HoldBody, ScaleBody, BreakerBody, UpBody, DiagnoseRequest),
    *(AcknowledgeBody, AlertUpdateBody, HardwareBody, ListedHardwareBody, SweepBody),
    *(WorkloadCheckBody, WorkDoneBody, StopBody, ResumeBody, IdentityBody, DrillBody),
)
