"""Defines a saga: a table of steps, each with who performs it, its undo and its deadline.

Declared one file per saga in `services/saga/definitions/`; read by `decide`. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from schemas.enums import REMEDIES, SagaKind
from schemas.node_records import NodeRecord
from schemas.saga_params import SagaParams

Outputs = Mapping[str, Mapping[str, Any]]
"""Step name -> its outputs: the only thing that steps share."""

Inputs = Callable[[SagaParams, Outputs], msgspec.Struct]
Seconds = Callable[[SagaParams], float | None]
"""None: there is no such bound."""


@dataclass(frozen=True, slots=True)
class Met:
    """A waiting step's condition holds."""

    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unmeetable:
    """A waiting step's condition can no longer come to hold."""

    reason: str
    error: str


Condition = Callable[[SagaParams, NodeRecord | None], Met | Unmeetable | None]
"""Looks at the node a step waits for; None: not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step is one row of a saga's table."""

    name: str
    inputs: Inputs
    deadline_seconds: Seconds
    undo: bool = False
    """Whether unwinding takes the action back."""
    overdue_seconds: Seconds | None = None
    """After how long operators are notified that it lasts, where it has no deadline."""
    on_deadline: Literal["fail", "proceed"] = "fail"
    on_failure: Literal["fail", "proceed"] = "fail"
    """Whether the saga goes on where the step's action cannot be brought about."""
    cut_short: bool = False
    """Whether its waiting may be ended before the deadline, by a person or by what happens."""
    pivot: bool = False
    """Once it has succeeded there is no way back: a later failure is stuck, not unwound."""
    irrevocable: bool = False
    """Once begun it cannot be called off: from then on the saga cannot be cancelled, and unwinding
    undoes no earlier step."""
    superseded: bool = False
    """Unwinding does not wait for an action under way to stop: it harms nothing, or the undo copes
    with it."""
    waits: Condition | None = None
    """Set where no service performs the step: it waits for something to be true of the new node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A saga's steps, whose order may depend on the pool's settings, and what its kind implies."""

    kind: SagaKind
    steps: Callable[[SagaParams], tuple[Step, ...]]
    leaves: str
    """What unwinding leaves behind, in a sentence; shown to operators."""
    leaves_restored: str = ""
    """The same where its node was healthy at the request."""
    on_request: bool = False
    """Whether operators may request it of a node, by this name."""
    out_of_service: bool = False
    """Its node counts against the budget's level from the moment the saga is opened."""
    disrupts: bool = False
    """It counts against the budget's rate, and the breaker's ramp."""
    cordons: bool = False
    """It cordons its node, so that an uncordon of the node cancels it."""
    keeps_cordon: bool = False
    """Unwinding leaves a cordon that its node had before, and takes back its own."""
    removes_node: bool = False
    brings_node: bool = False
    resizes: bool = False
    """It only brings the pool to its size: observe mode reports how many, and not each one."""
    backs_off: bool = False
    """The reconciler opens it by itself: each failure in a row delays the next start."""

    @property
    def remediates(self) -> bool:
        """Return whether the saga is a remedy of an unhealthy node."""
        return self.kind in REMEDIES

    @property
    def in_place(self) -> bool:
        """Return whether the saga is a remedy that keeps the node, whose record remembers it."""
        return self.remediates and not self.removes_node

    def left(self, params: SagaParams) -> str:
        """Return what unwinding this saga leaves behind."""
        if params.was_cordoned:
            return "the node cordoned, as it was"
        return (params.restores_service and self.leaves_restored) or self.leaves
