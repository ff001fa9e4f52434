"""Breaker, open incidents and observe-mode decisions: parts of a pool's record."""

from typing import Literal

from schemas.enums import BreakerCause, BreakerState, IncidentScope, SagaKind
from schemas.messages import Record
from schemas.value_limits import Int, UtcTime


class OpenIncident(Record, frozen=True, kw_only=True):
    """Faults on several nodes with a common cause; remediation of those nodes waits."""

    kind: str
    """A fault's kind, or `silence`."""
    code: Int = 0
    nodes: Int
    """Nodes that it has affected so far, those repaired meanwhile included."""
    joined_at: UtcTime | None = None
    """When the last of them fell unhealthy; None: none has since it was opened."""
    since: UtcTime
    last: UtcTime
    fault: str = ""
    """ID of the first node's fault."""
    scope: IncidentScope = "pool"
    """What the nodes have in common; `pool`: only the fault signature."""
    within: str = ""
    """Value of the scope: the rack, zone, driver version or provider."""
    released: bool = False
    """An operator closed the breaker: the incident no longer delays remediation."""
    as_unit: bool = False
    """A fault of a rack's fabric: the rack is replaced as one, and nothing else is held back."""
    hold_ended_at: UtcTime | None = None
    """When its hold expired: nodes unhealthy before then do not open it again."""
    heard_since: UtcTime | None = None
    """Of a silence: since when other nodes that have the same in common are heard, in each region
    of silent ones, so that links work; absent while none is."""
    probed_at: UtcTime | None = None
    """When one of its silent nodes was last repaired to see whether that helps."""


class Breaker(Record, frozen=True, kw_only=True):
    """Records whether a pool's unhealthy nodes are remediated, and why not."""

    state: BreakerState = "closed"
    since: UtcTime | None = None
    cause: BreakerCause = ""
    reason: str = ""
    by: str = ""
    """The operator who opened or closed it."""
    forced: bool = False
    """Opened by an operator: only an operator closes it."""
    request: str = ""
    """ID of the last request that changed it; a repeat changes nothing."""
    probe: str = ""
    """Half-open: the saga of the probe."""
    probe_outcome: Literal["", "done", "failed", "cancelled"] = ""
    """Outcome of the probe."""
    probes_failed: Int = 0
    """Consecutive failed probes; each lengthens the wait before the next."""
    probe_at: UtcTime | None = None
    """Earliest time of the next probe."""
    ramp: Int = 0
    """Remediations allowed at once after it closed, doubled by each success; 0: as the budget
    allows."""
    ramp_from: UtcTime | None = None
    """Remediations that began after this time count against the ramp."""
    ramp_since: UtcTime | None = None
    """When the ramp's present stage began."""


class ObservedAction(Record, frozen=True, kw_only=True):
    """A saga that a pool in observe mode would have started."""

    kind: SagaKind
    node: str = ""
    nodes: Int = 0
    """Number of nodes, where it concerns more than one."""
    cause: str = ""
    """Identifies the decision when it is taken again."""
    reason: str = ""
    since: UtcTime
