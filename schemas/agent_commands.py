"""Requests that an agent or the enrollment endpoint answers, and their answers."""

from typing import Annotated

import msgspec

from schemas.messages import UtcTime
from schemas.node_events import CheckResult


class DiagnoseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks an agent to test its host (its node's `command.diagnose`); answered when it is done."""

    checks: tuple[str, ...] = ()
    """Names: `boot`, `nvidia-smi`, `memory`, `dcgm`, `nvbandwidth`, `nccl`, `burn`, or a plugin's;
    empty: the boot checks alone."""
    level: Annotated[int, msgspec.Meta(ge=1, le=4)] = 1
    """Of `dcgm`: from 2 on it needs the GPUs for itself."""
    seconds: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 60
    """How long `burn` burns."""
    gbps_min: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Least bandwidth that passes, for `nvbandwidth` and `nccl`; 0: any."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What the tests found."""

    ok: bool
    checks: tuple[CheckResult, ...] = ()
    refused: str = ""
    """Why nothing was run; empty where it was."""


class ResetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks an agent to reset GPUs (`command.reset-gpu`); answered when that is done."""

    key: str
    """Of the saga's step: asked again under the same key, nothing is reset a second time."""
    gpus: tuple[str, ...] = ()
    """UUIDs; empty: all of the node's."""


class RebootRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks an agent to reboot its host (`command.reboot`); answered before it goes down."""

    key: str
    boot_id: str
    """The boot to end: an agent of another boot answers that this has happened."""


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a reset or a reboot."""

    ok: bool
    detail: str = ""
    """What the tool printed, or why it failed."""
    refused: str = ""
    """Why nothing was done; the same may be asked again. Empty: it was done, or it failed."""
    boot_id: str = ""
    """The agent's."""
    at: UtcTime | None = None
    """When it was done, by the node's clock."""


class EnrollRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a new node asks with its bootstrap credentials."""

    key: Annotated[str, msgspec.Meta(pattern="^U[A-Z2-7]{55}$")]
    """Public key of a pair that the node has made; its seed never leaves the node."""


class EnrollAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What it is given."""

    token: str = ""
    """The signed token with which the key's owner may speak for this node."""
    refused: str = ""
    """Why there is none, in one sentence."""
