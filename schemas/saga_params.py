"""What a saga is about, and what it launches."""

import msgspec

from schemas.enums import Action, DrainMode
from schemas.launch_offers import Choice
from schemas.messages import UtcTime


class SetupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to run on a new node over SSH, and how to get there."""

    commands: tuple[str, ...]
    user: str
    private_key_path: str
    """On the provisioner's host; the key itself never travels."""
    port: int = 22
    sudo: bool = True
    address_seconds: float = 900.0
    login_seconds: float = 600.0
    connect_seconds: float = 30.0
    command_seconds: float = 600.0


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to launch, fixed when the saga starts: a changed pool spec does not reach into it."""

    fleet: str
    provider: str
    instance_type: str
    gpu_count: int = 0
    """0: not promised, so not checked at admission."""
    region: str = ""
    zones: tuple[str, ...] = ()
    ssh_keys: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    setup: SetupSpec | None = None
    """None: the image brings the agent up by itself."""
    choice: Choice | None = None
    """Where it may be launched, and by what that is chosen; None: as `provider`, `instance_type`,
    `region` and `zones` say, in their order."""
    user_data: str = ""
    """`auto`, or a template's file on the provisioner's host; filled in as it is launched."""


class SagaParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a saga is about; every step's inputs are made of this and of earlier outputs."""

    pool: str
    node: str = ""
    """The node that leaves, or that is acted on."""
    new_node: str = ""
    """The node that comes."""
    spare: bool = False
    """The node that comes, or leaves, is one of the reserve."""
    promotes: str = ""
    """The spare that is put into service."""
    order: str = "terminate_first"
    reason: str = ""
    action: Action = "none"
    fault: str = ""
    """Id of the fault that led here; empty where a person asked."""
    by: str = ""
    fault_signature: str = ""
    """What the node has (`xid-95`, `silence`): attempts at curing it are counted by it."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs to reset; empty: all of the node's."""
    boot_id: str = ""
    """The boot that a reboot is to end."""
    restores_service: bool = False
    """The node was well and in service when somebody asked: unwinding gives it back."""
    sole_notice: str = ""
    """The cloud's notice, where the node is taken out of service for nothing else."""
    cleared_at: UtcTime | None = None
    """When somebody vouched for the node that it gives back; None: when the saga began."""
    attempt: int = 0
    """Which attempt at curing the node this is, of `attempts_max`."""
    attempts_max: int = 0
    launch: LaunchSpec | None = None
    drain: DrainMode = "deadline"
    drain_timeout_seconds: float = 3600.0
    launch_timeout_seconds: float = 1200.0
    diagnostic: str = ""
    """What a new node must pass before it is admitted; empty: nothing beyond its boot checks."""
    diagnostic_timeout_seconds: float = 900.0
