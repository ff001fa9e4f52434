"""What everyday commands ask of a fleet: over the bus (`BusFleet`) or over HTTP (`HttpFleet`)."""

from typing import TYPE_CHECKING, Any

from services.cli.fleet_discovery import NEEDS_BUS
from services.fleet_client.fleet_client import FleetClient
from services.primitives.errors import NavarchError

if TYPE_CHECKING:
    # A command over the bus starts without the HTTP library, and one over HTTP without the bus's.
    from services.cli.bus_fleet import BusFleet
    from services.cli.http_fleet import HttpFleet

    FleetAccess = BusFleet | HttpFleet
    NodeAccess = FleetClient | HttpFleet
else:
    FleetAccess = NodeAccess = Any


def bus_of(fleet: object, what: str) -> FleetClient:
    """The connection to the bus; NavarchError over HTTP, where there is none."""
    if not isinstance(fleet, FleetClient):
        raise NavarchError(f"{what} {NEEDS_BUS}")
    return fleet
