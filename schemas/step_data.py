"""Inputs and outputs of saga steps that one service sends to another."""

from typing import Literal

import msgspec

from schemas.enums import Action
from schemas.launch_offers import Market
from schemas.messages import UtcTime
from schemas.saga_params import LaunchSpec


class NodeInputs(msgspec.Struct, frozen=True, kw_only=True):
    """cordon, uncordon, drain: which node, and why."""

    pool: str
    node: str
    reason: str = ""
    wait: bool = True
    """drain: whether to wait until the work has left."""
    workload_notified: bool = False
    """drain: the workload system has been told already (`vacate`)."""


class VacateOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vacate: the workload system has taken the order to drain."""

    workload_notified: bool = True


class TerminateInputs(msgspec.Struct, frozen=True, kw_only=True):
    """terminate, and the undo of provision."""

    pool: str
    node: str
    reason: str = ""


class ProvisionInputs(msgspec.Struct, frozen=True, kw_only=True):
    """provision: the node's name is also the instance's, and the root of its token and tags."""

    pool: str
    node: str
    launch: LaunchSpec
    timeout_seconds: float = 1200.0


class ProvisionOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """provision: what the provider made of it."""

    provider: str
    provider_id: str
    region: str = ""
    zone: str = ""
    address: str = ""
    host: str = ""
    """The physical machine, where the provider tells."""
    instance_type: str = ""
    market: Market | Literal[""] = ""
    dollars_per_hour: float | None = None
    """None: not known, or nothing."""


class BootstrapInputs(msgspec.Struct, frozen=True, kw_only=True):
    """bootstrap: bring the agent onto the instance."""

    pool: str
    node: str


class ResetInputs(msgspec.Struct, frozen=True, kw_only=True):
    """reset: by the node's agent."""

    pool: str
    node: str
    gpus: tuple[str, ...] = ()
    """UUIDs; empty: all."""


class RebootInputs(msgspec.Struct, frozen=True, kw_only=True):
    """reboot: by the node's agent, else by its provider."""

    pool: str
    node: str
    boot_id: str = ""
    """The boot to end; once the node has another one there is nothing to do."""


class ActionOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """reset, reboot: who did it, when by that one's clock, and what was said."""

    by: str
    at: UtcTime | None = None
    detail: str = ""


class CheckInputs(msgspec.Struct, frozen=True, kw_only=True):
    """check: whether the node may have work, by tests that its agent runs."""

    pool: str
    node: str
    checks: tuple[str, ...] = ("boot",)
    level: int = 1
    """Of `dcgm`."""
    since: UtcTime | None = None
    """When its GPUs were reset, by its own clock: an unhealthy fault after that fails the check."""
    boot_id: str = ""
    """The boot that a reboot has begun: an unhealthy fault of it fails the check."""
    action: Action = "none"
    """What the node was mended for: where its verdict calls for more by now, the check fails."""


class CheckOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """check: what passed."""

    detail: str = ""
