"""What a pool's record holds of its safety: breaker, incidents, and what mode observe would do."""

from typing import Literal

from schemas.enums import BreakerCause, BreakerState, IncidentScope, SagaKind
from schemas.messages import Record, UtcTime


class OpenIncident(Record, frozen=True, kw_only=True):
    """One trouble of many nodes, which a pool holds back from replacing all of them."""

    kind: str
    """A fault's kind, or `silence`."""
    code: int = 0
    nodes: int
    """How many they were when it was seen."""
    since: UtcTime
    last: UtcTime
    fault: str = ""
    """Of the first node."""
    scope: IncidentScope = "pool"
    """What the nodes share; `pool`: the fault signature."""
    within: str = ""
    """Which rack, zone, driver version or provider it is."""
    released: bool = False
    """A person closed the breaker over it: it holds nothing back any more."""
    settled: UtcTime | None = None
    """When its hold had passed: who fell ill until then makes no new incident of it."""


class Breaker(Record, frozen=True, kw_only=True):
    """Whether a pool's sick nodes are acted on, and why not."""

    state: BreakerState = "closed"
    since: UtcTime | None = None
    cause: BreakerCause = ""
    reason: str = ""
    by: str = ""
    """Who opened or closed it by hand."""
    forced: bool = False
    """Opened by a person: it stays so until a person closes it."""
    request: str = ""
    """The last request that changed it, so that a repeated one changes nothing."""
    probe: str = ""
    """Half-open: the saga of the one repair."""
    probed: Literal["", "done", "failed", "cancelled"] = ""
    """How that ended."""
    probes_failed: int = 0
    """In a row; each makes the next wait longer."""
    probe_at: UtcTime | None = None
    """No probe before."""
    ramp: int = 0
    """After it closed: so many repairs at once, twice as many with each that succeeds; 0: as the
    budget allows."""
    ramp_from: UtcTime | None = None
    """Repairs begun from here on count against the ramp."""


class ObservedAction(Record, frozen=True, kw_only=True):
    """What a pool that only observes would have begun."""

    kind: SagaKind
    node: str = ""
    nodes: int = 0
    """How many, where it is not about one."""
    cause: str = ""
    """What makes it the same decision when it is taken again."""
    reason: str = ""
    since: UtcTime
