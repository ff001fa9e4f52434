"""The catalogue of instance types: what each has, and the abstract names for them.

`config/instance-types.yaml` is one; `instance_types:` of a configuration extends or corrects it.
"""

from typing import Annotated, Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.placement_settings import RackNodes

DRIVER_WAIT: Final = Duration(600)
"""Of a type that states no time of its own, and of an agent without the setting."""
Price = Annotated[float, msgspec.Meta(ge=0, le=100_000)]
LinkLayer = Literal["", "InfiniBand", "Ethernet"]
"""As the kernel names it; empty: not known."""
NvlinkCount = Annotated[int, msgspec.Meta(ge=0, le=36)]
PcieLanes = Annotated[int, msgspec.Meta(ge=0, le=32)]
PcieGeneration = Annotated[int, msgspec.Meta(ge=0, le=7)]
LinkRate = Annotated[float, msgspec.Meta(ge=0, le=10_000)]


class TypeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes the hardware that one instance type has."""

    gpus: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    """How many."""
    gpu: str = ""
    """Model: `H100`."""
    gpu_memory_gb: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 0.0
    """Of each GPU."""
    memory_gb: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 0.0
    """Of the host."""
    vcpus: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    """Virtual processors of the host."""
    dollars_per_hour: Price | None = None
    """On-demand price, used where the provider's API gives none; None: unknown."""
    spot_dollars_per_hour: Price | None = None
    """The same on the spot market."""
    rdma_devices: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    """RDMA devices (EFA, InfiniBand) of a node whose launch joins the fabric; 0: not known, and
    its agent checks none."""
    rdma_link_layer: LinkLayer = ""
    """Link layer of the ports of those devices: ports of another are not counted."""
    rdma_gbit_per_second: LinkRate = 0.0
    """Rate of each of those ports, at least; 0: not known."""
    nvlinks: NvlinkCount = 0
    """NVLinks of each GPU; 0: not known."""
    nvlink_gbyte_per_second: LinkRate = 0.0
    """Speed of one NVLink in one direction, at least; 0: not known."""
    pcie_width: PcieLanes = 0
    """PCIe lanes of each GPU, as a node of the type reports them, which in a virtual machine may be
    fewer than the card has; 0: not known."""
    pcie_generation: PcieGeneration = 0
    """PCIe generation of each GPU under load, as a node of the type reports it; 0: not known."""
    driver_wait: Duration = DRIVER_WAIT
    """How long the driver of a new node may take to be loaded before its boot checks fail: less
    than `launch_timeout` of each pool that launches the type."""
    rack_nodes: RackNodes = 0
    """Nodes of a rack with one NVLink fabric, of which the type is a part; 0: it is a node by
    itself."""


class InstanceTypes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes instance types by name: a whole catalogue, or additions to one."""

    types: dict[str, dict[str, TypeSpec]] = {}
    """Kind of provider (`aws`), or a provider's own name -> instance type -> what it has. The type
    `*` matches every type that is not listed."""
    abstract: dict[str, dict[str, tuple[str, ...]]] = {}
    """Abstract type (`h100-8x`) -> kind of provider -> its instance types, best first."""
