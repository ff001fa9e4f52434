"""Declares when a node that loses contact and returns counts as flapping."""

from typing import Annotated

import msgspec

from schemas.duration import Duration


class FlappingSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defines when a node that loses contact and returns is quarantined, and for how long."""

    losses: Annotated[int, msgspec.Meta(ge=0, le=16)] = 5
    """So many times within `window`, other than in a repair or an announced restart; 0: never."""
    window: Duration = Duration(3600)
    """Over which they count; once fewer are left of it, the node takes work again."""
