"""Declares when nodes are replaced by cheaper ones."""

from typing import Annotated

import msgspec

from schemas.duration import Duration

SavingPercent = Annotated[float, msgspec.Meta(ge=0, lt=100)]


class ConsolidationSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When nodes are replaced at leisure by cheaper ones, launched before the old ones leave."""

    min_saving: SavingPercent = 0.0
    """Percent of its price that a node must save at least: `20`. 0: none is replaced."""
    min_age: Duration = Duration(4 * 3600)
    """How long a node stays in any case."""
