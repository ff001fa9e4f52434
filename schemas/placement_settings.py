"""How close to each other a pool's nodes are placed."""

import msgspec

from schemas.duration import Duration
from schemas.launch_offers import Together


class PlacementSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How close to each other a pool's nodes are placed, where the provider supports it."""

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
