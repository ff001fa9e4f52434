"""Declares what a saga is about, and what it launches."""

from typing import Any, Final

import msgspec

from schemas.enums import Action, DrainMode
from schemas.launch_offers import Choice
from schemas.value_limits import Float, Int, OptionalToken, Seconds, Token, UserName, UtcTime

WORKLOAD_NAME: Final = "workload-name"
"""Label of a node to which the workload system gave a name: that name."""


class SetupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Commands to run on a new node over SSH, and how to connect."""

    commands: tuple[str, ...]
    user: UserName
    private_key_path: str
    """File on the provisioner's host; the key itself is never sent."""
    port: Int = 22
    sudo: bool = True
    address_seconds: Seconds = 900.0
    login_seconds: Seconds = 600.0
    connect_seconds: Seconds = 30.0
    command_seconds: Seconds = 600.0


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Fixes what to launch when the saga starts: later changes of the pool do not affect it."""

    fleet: str
    provider: str
    instance_type: str
    gpu_count: Int = 0
    """0: unspecified, so not checked at admission."""
    region: str = ""
    zones: tuple[str, ...] = ()
    ssh_keys: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    setup: SetupSpec | None = None
    """None: the image starts the agent itself."""
    choice: Choice | None = None
    """Offers and strategy; None: `provider`, `instance_type`, `region` and `zones`."""
    user_data: str = ""
    """`auto`, or a template file on the provisioner's host; rendered at launch."""
    gang: OptionalToken = ""
    """The launches with which it is made in one place, or not at all; empty: it is no part of any.
    """
    gang_size: Int = 0
    gather_seconds: Seconds = 0.0
    """How long the instances of a gang that is not whole are kept."""
    fingerprint: dict[str, str] = {}
    """Digests of what the configuration said of it; empty: an older release launched it."""
    lasting: bool = False
    """Nothing makes another machine in its place: it is repaired by people, and given back."""


class SagaTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Declares what a saga's params and its entry in the pool's record have in common."""

    node: OptionalToken = ""
    """The node that is removed or acted on."""
    new_node: OptionalToken = ""
    """The node that is launched."""
    not_spot: bool = False
    """`new_node` is one of those that the pool's `on_demand_min` requires."""
    spare: bool = False
    """The node that is launched or removed is a spare."""
    promotes: OptionalToken = ""
    """The spare that is put into service."""
    reason: str = ""
    action: Action = "none"
    fault: str = ""
    """ID of the fault that led to the saga; empty for an operator's request."""
    by: str = ""
    fault_signature: str = ""
    """`xid-79`, `silence`: groups sagas of one incident, and remediation attempts."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs to reset; empty: all of the node's."""
    faulty_gpus: tuple[Int, ...] = ()
    """cordon-gpus: the GPUs that are to get no new work; empty: all may have work."""
    boot_id: str = ""
    """The boot that a reboot is to end."""
    restores_service: bool = False
    """The node was in service when an operator requested the saga: unwinding restores it."""
    was_cordoned: bool = False
    """scale-down, cordon, drain: the node was cordoned before, and stays so where it is unwound."""
    quarantined_at: UtcTime | None = None
    """Since when that cordon was Navarch's own, until a repair: it is so again, then."""
    notice: str = ""
    """The provider's notice that led to it, if any."""
    sole_notice: str = ""
    """The provider's notice, where it is the only reason for the saga."""
    cleared_at: UtcTime | None = None
    """When an operator declared the node healthy that it restores; None: when the saga began."""
    max_dollars: Float = 0.0
    """Dollars per hour that `new_node` may cost, as it replaces a dearer one; 0: as the pool says.
    """
    interrupted: bool = False
    """The cloud takes `node`, or has taken it: its offering is one that interrupts."""
    gone: bool = False
    """The provider had reported the node's instance gone: the saga takes nothing out of service."""
    dead: bool = False
    """No work is left on the node: its instance is gone, or does not run, says its provider."""
    attempt: Int = 0
    """Number of this remediation attempt, of `attempts_max`."""
    attempts_max: Int = 0


class SagaParams(SagaTraits, frozen=True, kw_only=True):
    """Says what a saga is about; each step's inputs are built from it and from earlier outputs."""

    pool: Token
    order: str = "terminate_first"
    launch: LaunchSpec | None = None
    drain: DrainMode = "deadline"
    drain_timeout_seconds: Seconds = 3600.0
    checkpoint_seconds: Seconds = 0.0
    """How long work that was asked for a checkpoint has to leave by itself; 0: it is not asked."""
    launch_timeout_seconds: Seconds = 1200.0
    diagnostic: str = ""
    """Diagnostic that a new node must pass before admission; empty: only its boot checks."""
    diagnostic_timeout_seconds: Seconds = 900.0


def traits_of(saga: SagaTraits) -> dict[str, Any]:
    """Return the shared fields of a saga, as keyword arguments."""
    return {name: getattr(saga, name) for name in SagaTraits.__struct_fields__}
