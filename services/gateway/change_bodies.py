"""What callers send with changes: the bodies of POST requests. Pure."""

from typing import Annotated, Any, Final

import msgspec

DIAGNOSE_SECONDS_MAX: Final = 600.0
"""How long a caller may wait for what a diagnosis finds."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller sends."""


class ReasonBody(_Body, frozen=True, kw_only=True):
    """Why; shown in the events."""

    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""


class DrainBody(ReasonBody, frozen=True, kw_only=True):
    """How to wait for the work."""

    mode: str = ""
    """deadline, wait or immediate; empty: the pool's."""
    timeout: str = ""
    """`10m`; empty: the pool's."""

    def fields(self) -> dict[str, Any]:
        """As the request has them."""
        return {"reason": self.reason, "mode": self.mode, "timeout": self.timeout or None}


class HoldBody(_Body, frozen=True, kw_only=True):
    """Keep automation off a node."""

    for_: str = msgspec.field(name="for")
    """`2h`; at most seven days."""
    reason: str


class ScaleBody(_Body, frozen=True, kw_only=True):
    """The pool's desired size."""

    nodes: int


class BreakerBody(_Body, frozen=True, kw_only=True):
    """Why; shown to other operators."""

    reason: str


class UpBody(ReasonBody, frozen=True, kw_only=True):
    """A pool to create or change."""

    spec: dict[str, Any]
    """As under `pools:` in the configuration."""
    nodes: int | None = None


BODIES: Final = (ReasonBody, DrainBody, HoldBody, ScaleBody, BreakerBody, UpBody)
