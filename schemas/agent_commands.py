"""Requests that an agent or the enrollment endpoint answers, and their answers."""

from typing import Annotated, Final

import msgspec

from schemas.held_conditions import ConditionView
from schemas.join_tokens import SECRET_CHARS_MAX
from schemas.node_events import CheckResult
from schemas.value_limits import UtcTime

POD_TOKEN_CHARS_MAX: Final = 16_384


class DiagnoseRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Test the host (`command.diagnose`); the reply comes when the tests have ended."""

    checks: tuple[str, ...] = ()
    """Names: `boot`, `nvidia-smi`, `memory`, `dcgm`, `nvbandwidth`, `nccl`, `burn`, or a plugin's;
    empty: only the boot checks."""
    level: Annotated[int, msgspec.Meta(ge=1, le=4)] = 1
    """Level of `dcgm`; from 2 on it needs the GPUs exclusively."""
    seconds: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 60
    """Duration of `burn`."""
    gbps_min: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Minimum bandwidth for `nvbandwidth` and `nccl`; 0: any."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the results of a node's diagnostic tests."""

    ok: bool
    checks: tuple[CheckResult, ...] = ()
    refused: str = ""
    """Why no test was run; empty: tests were run."""
    conditions: tuple[ConditionView, ...] = ()
    """Everything that holds on the node now, and what cannot be read there."""


class ResetRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Reset GPUs (`command.reset-gpu`); the reply comes afterwards."""

    key: str
    """ID of the saga's step; a repeat with the same key does not reset again."""
    gpus: tuple[str, ...] = ()
    """UUIDs; empty: all GPUs of the node."""


class RebootRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Reboot the host (`command.reboot`); the reply comes before it goes down."""

    key: str
    boot_id: str
    """The boot to end; an agent in another boot replies that it is done."""


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the result of a reset or a reboot."""

    ok: bool
    detail: str = ""
    """The tool's output, or why it failed."""
    refused: str = ""
    """Why nothing was done; it may be requested again. Empty: it was done, or failed."""
    boot_id: str = ""
    """The agent's boot ID."""
    at: UtcTime | None = None
    """When it was done, by the node's clock."""


class EnrollRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Request of a node for its own credentials (`enroll`), or for a token that is valid longer."""

    key: Annotated[str, msgspec.Meta(pattern=r"^U[A-Z2-7]{55}\Z")]
    """Public key of a pair that the node generated; its seed never leaves the node."""
    pod_token: Annotated[str, msgspec.Meta(max_length=POD_TOKEN_CHARS_MAX)] = ""
    """Token of the pod in which the agent runs (`enroll-pod`): proves which node it runs on."""
    join_secret: Annotated[str, msgspec.Meta(max_length=SECRET_CHARS_MAX)] = ""
    """Of the token with which a machine joins a pool; empty: it was launched, or has joined."""
    clock: UtcTime | None = None
    """The machine's clock, where it joins."""


class EnrollAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Reply to an enrollment."""

    token: str = ""
    """The signed token that authorises the key's owner to act as this node, for some hours."""
    rejoin_token: str = ""
    """Authorises it to request another token, for as many days; empty where none is issued."""
    authority: str = ""
    """Certificate authorities of the bus, as PEM; empty: the machine's own."""
    refused: str = ""
    """Why there is no token, in one sentence."""
