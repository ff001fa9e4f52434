"""Which offerings are meant: those of a provider, a region, a zone, a type, a market. Pure."""

from dataclasses import dataclass
from typing import Final

from schemas.launch_offers import Offering


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferingSelector:
    """What is empty may be anything."""

    provider: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    market: str = ""

    def covers(self, offering: Offering) -> bool:
        """Whether an offering is one of those."""
        pairs = (
            (self.provider, offering.provider),
            (self.region, offering.region),
            (self.zone, offering.zone),
            (self.instance_type, offering.instance_type),
            (self.market, offering.market),
        )
        return all(meant in ("", found) for meant, found in pairs)

    def __str__(self) -> str:
        """Name it as people read it."""
        words = (self.provider, self.region, self.zone, self.instance_type, self.market)
        return " ".join(each for each in words if each)


ANYWHERE: Final = OfferingSelector()
