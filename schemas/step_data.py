"""Inputs and outputs of saga steps that one service sends to another."""

from typing import Literal

import msgspec

from schemas.enums import Action
from schemas.launch_offers import Market
from schemas.saga_params import LaunchSpec
from schemas.value_limits import (
    Address,
    Float,
    Identifier,
    Int,
    OptionalToken,
    Seconds,
    Token,
    UtcTime,
)


class NodeInputs(msgspec.Struct, frozen=True, kw_only=True):
    """cordon, uncordon, drain: the node and the reason."""

    pool: Token
    node: Token
    reason: str = ""
    wait: bool = True
    """drain: whether to wait until the work has finished."""
    workload_notified: bool = False
    """drain: `vacate` has already notified the workload system."""
    checkpoint_seconds: Seconds = 0.0
    """drain: first ask the work for a checkpoint, and let it leave by itself for this long."""
    drain_seconds: Seconds | None = None
    """vacate: how long the drain that follows waits for the work; None: as long as the node is
    there."""


class GpuInputs(msgspec.Struct, frozen=True, kw_only=True):
    """cordon-gpus: the node, and all of its GPUs that are to get no new work."""

    pool: Token
    node: Token
    reason: str = ""
    gpus: tuple[Int, ...] = ()


class VacateOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vacate: the workload system accepted the drain."""

    workload_notified: bool = True


class DrainOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """drain: how it ended."""

    drain_confirmed: bool = True
    """False: it did not wait, or no workload system could report whether work is left."""


class TerminateInputs(msgspec.Struct, frozen=True, kw_only=True):
    """terminate, and the undo of provision."""

    pool: Token
    node: Token
    reason: str = ""
    fault: str = ""
    """The XID for which it is replaced: `xid-79`, which its provider may get a report of."""


class ProvisionInputs(msgspec.Struct, frozen=True, kw_only=True):
    """provision: the node's name is also the instance's and the base of its token and tags."""

    pool: Token
    node: Token
    launch: LaunchSpec
    interrupted: OptionalToken = ""
    """The node that the cloud takes and that this one replaces."""
    timeout_seconds: Seconds = 1200.0


class ProvisionOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """provision: the launched instance."""

    provider: str
    provider_id: Identifier
    region: Identifier = ""
    zone: Identifier = ""
    address: Address = ""
    host: Identifier = ""
    """The physical machine, where the provider names it."""
    instance_type: str = ""
    market: Market | Literal[""] = ""
    dollars_per_hour: Float | None = None
    """None: unknown, or free."""
    restarts_cold: bool = False
    """Its machine can be switched off and on."""
    chosen: str = ""
    """Which offerings came later than this one, and why: `before …, interrupted lately`."""
    sources: dict[str, str] = {}
    """Digests of the image and the user data that it was launched with."""


class BootstrapInputs(msgspec.Struct, frozen=True, kw_only=True):
    """bootstrap: install the agent on the instance."""

    pool: Token
    node: Token


class ResetInputs(msgspec.Struct, frozen=True, kw_only=True):
    """reset: performed by the node's agent."""

    pool: Token
    node: Token
    gpus: tuple[str, ...] = ()
    """UUIDs; empty: all."""


class RebootInputs(msgspec.Struct, frozen=True, kw_only=True):
    """reboot: performed by the node's agent, else by its provider."""

    pool: Token
    node: Token
    boot_id: str = ""
    """The boot to end; nothing to do if the node has another."""
    cold: bool = False
    """Switch the machine off and on, where that can be done."""


class ActionOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """reset, reboot: the performer, the time by its clock, and its output."""

    by: str
    at: UtcTime | None = None
    detail: str = ""


class CheckInputs(msgspec.Struct, frozen=True, kw_only=True):
    """check: tests that the agent runs before the node may have work."""

    pool: Token
    node: Token
    checks: tuple[str, ...] = ("boot",)
    level: Int = 1
    """Of `dcgm`."""
    since: UtcTime | None = None
    """When its GPUs were reset, by its clock; an unhealthy fault after that fails the check."""
    boot_id: str = ""
    """The boot after a reboot; an unhealthy fault in it fails the check."""
    action: Action = "none"
    """Action that was performed; if the verdict now calls for more, the check fails."""


class CheckOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """check: the tests that passed."""

    detail: str = ""
