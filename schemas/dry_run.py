"""What a request about a node would come to: asked and answered, and nothing is touched."""

from typing import Any

import msgspec

from schemas.enums import Refusal


class DryRunRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks what a request would come to (`query.dry_run`)."""

    verb: str
    """drain, replace, reset-gpu, reboot, cordon or uncordon."""
    node: str
    request: msgspec.Raw = msgspec.Raw(b"{}")
    """The request's other fields, as they would be published."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can stand in the way."""

    name: str
    passed: bool
    detail: str = ""
    automation_only: bool = False
    """It holds back what begins by itself, and not what a person asks for."""


class DryRunStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the saga that would begin."""

    step: str
    deadline_seconds: float | None = None
    """None: it waits for ever."""
    undone: bool = False
    """Where the saga is unwound."""
    final: bool = False
    """From here on nobody can cancel it."""


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen."""

    verb: str
    node: str
    pool: str
    accepted: bool
    refusal: Refusal | None = None
    reason: str = ""
    """Why it would be refused, and what would be accepted."""
    saga: str = ""
    gates: tuple[Gate, ...] = ()
    steps: tuple[DryRunStep, ...] = ()
    leaves: str = ""
    """What is left behind where the saga is unwound."""
    new_node: str = ""
    promotes: str = ""
    """The spare that would take the node's place."""
    order: str = ""
    drain: str = ""
    offering: dict[str, Any] = {}
    """What would be launched."""
    unavailable: int = 0
    unavailable_limit: int = 0
    disruptions: int = 0
    disruptions_limit: int = -1
    """-1: any number."""
    desired: int = 0
