"""A node's identity says which machine it is, and which others have used its name."""

from typing import Final

import msgspec

from schemas.gpu_samples import GpuIdentity
from schemas.value_limits import Address, Identifier, Name, UtcTime

OTHERS_MAX: Final = 8
"""Earlier boots and machines that a node's identity keeps, and as many refused ones."""
GPUS_MAX: Final = 32
"""GPUs that are kept of one machine: one registration may lack some."""


class MachineIdentity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One boot of a machine, as its agent has registered it. Empty fields were not read."""

    boot_id: Identifier = ""
    provider_id: Identifier = ""
    """The instance's ID by the cloud's metadata service, in the form that the provider lists."""
    hostname: Name = ""
    address: Address = ""
    gpus: tuple[Identifier, ...] = ()
    """UUIDs."""
    serials: tuple[Identifier, ...] = ()
    machine_id: Identifier = ""
    """The UUID of the machine by its firmware (DMI)."""
    rack: Name = ""
    nvlink_domain: Name = ""
    since: UtcTime
    """When this machine was first heard under the node's name, over its reboots."""
    heard_at: UtcTime
    """When its last registration was stored."""
    registered_at: UtcTime
    """The time of that registration by the machine's own clock."""


class FixedIdentity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds what an agent says of its machine and others are acted on by; empty: not read."""

    gpus: tuple[GpuIdentity, ...] = ()
    """At most GPUS_MAX; the set of their UUIDs and serials is fixed, not their order."""
    rack: Name = ""
    nvlink_domain: Name = ""
    machine_id: Identifier = ""
    provider_id: Identifier = ""
    since: UtcTime | None = None
    """When it was fixed, or first claimed."""


class NodeMachines(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine that a node is, and the others that have registered under its name."""

    machine: MachineIdentity
    earlier: tuple[MachineIdentity, ...] = ()
    """Its earlier boots and the machines before it, the last first."""
    refused: tuple[MachineIdentity, ...] = ()
    """Machines that used the name while the node's own machine did, the last first."""
    fixed: FixedIdentity | None = None
    """What the node was admitted with; later reports of its agent change nothing of it. None: it is
    not admitted, or has not registered since this is recorded."""
    claimed: FixedIdentity | None = None
    """What its agent reports now, where that differs: an operator has not accepted it."""
    duplicate_of: tuple[Name, ...] = ()
    """`<pool>.<node>` of live nodes that have GPUs of what is claimed."""
    settled_at: UtcTime | None = None
    """When the last difference was over, or accepted."""
    accepted_by: Name = ""
    """The operator who accepted it; empty: the agent reports again what is fixed."""

    def refuses(self, boot_id: str) -> bool:
        """Return whether a boot is of a refused machine, and not the own one's."""
        own = boot_id in ("", self.machine.boot_id)
        return not own and any(each.boot_id == boot_id for each in self.refused)
