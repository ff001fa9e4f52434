"""Names the types of a fleet as commands see it: over the bus, or over HTTP."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # A command over the bus starts without the HTTP library, and one over HTTP without the bus's.
    from services.cli.bus_client import BusFleet
    from services.cli.http_fleet import HttpFleet
    from services.fleet_client.fleet_client import FleetClient

    FleetAccess = BusFleet | HttpFleet
    NodeAccess = FleetClient | HttpFleet
else:
    FleetAccess = NodeAccess = Any
