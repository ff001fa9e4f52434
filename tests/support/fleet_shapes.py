"""Fleets of the simulation that several tests begin with."""

from services.simulator.inputs.fuzz.campaign_steps import FleetShape

SMALL = FleetShape(
    nodes=3,
    order="terminate_first",
    max_unavailable=1,
    max_replacements=0,
    replicas=1,
    idempotent=True,
    list_lag_seconds=0.0,
    remediation="replace",
)
