"""Selects offerings by provider, region, zone, instance type and market. Pure."""

from dataclasses import astuple, dataclass, fields
from typing import Final

from schemas.launch_offers import Offering


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferingSelector:
    """An empty field selects every value."""

    provider: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    market: str = ""

    def covers(self, offering: Offering) -> bool:
        """Return whether an offering is selected."""
        keys = (each.name for each in fields(self))
        return all(getattr(self, key) in ("", getattr(offering, key)) for key in keys)

    def __str__(self) -> str:
        return " ".join(filter(None, astuple(self)))


ANYWHERE: Final = OfferingSelector()
