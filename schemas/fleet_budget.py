"""The fleet's budget and each pool's claims on it: record POOLS `fleet-budget`."""

from schemas.messages import Record
from schemas.value_limits import Int, Slot

FLEET_BUDGET_KEY = "fleet-budget"
"""Its key in POOLS."""


class BudgetClaim(Record, frozen=True, kw_only=True):
    """Records one pool's claim on the fleet's budget."""

    desired: Int = 0
    unavailable: Int = 0
    quarantined: Int = 0
    disruptions: dict[Slot, Int] = {}
    """Disruptions by slots of the fleet's window, as in the pool's record."""
    resets: dict[Slot, Int] = {}
    """GPU resets and reboots by the same slots."""
    voluntary: dict[Slot, Int] = {}
    """Removals of nodes without a fault by the same slots."""
    revision: Int = 0
    """Revision of the pool's record that the claim was decided on. While the record still has it,
    a replica may be about to write what it claimed, so the claim may only grow."""


class FleetBudgetRecord(Record, frozen=True, kw_only=True):
    """POOLS `fleet-budget`: every pool's claim, written before the pool acts."""

    claims: dict[str, BudgetClaim] = {}
