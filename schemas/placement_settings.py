"""Declares how close to each other a pool's nodes are placed, and whether racks are units."""

from typing import Annotated, Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.launch_offers import Together


class PlacementSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects how close to each other a pool's nodes are placed, where the provider supports it."""

    group: str = ""
    """Placement group at AWS, resource policy at Google."""
    together: Together = ""
    """Prefer the zone, or the region, where most of the pool's nodes are."""
    required: bool = False
    """Never launch elsewhere: what the pool lacks is launched as a whole in one zone, or region, or
    given back."""
    gather: Duration = Duration(300)
    """How long the machines of a launch that is not whole are kept, while the missing ones are
    tried in the same place."""


RACK_NODES_MAX: Final = 200
RackNodes = Annotated[int, msgspec.Meta(ge=0, le=RACK_NODES_MAX)]


class RackSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Racks as units, where the nodes of a rack share one NVLink fabric (NVL72)."""

    nodes: RackNodes = 0
    """Nodes of a rack: the pool is sized, launched and removed by whole racks, and its budget
    counts racks. 0: as the instance type says."""
    replace: Literal["node", "rack"] = "node"
    """What is replaced for a fault of one node: the node, or its rack, where the provider gives no
    single node back. A fault of the fabric replaces the rack in any case."""
