"""What each pool takes of the fleet's budget: one record, POOLS `fleet-budget`."""

from schemas.messages import Record

FLEET_BUDGET_KEY = "fleet-budget"
"""Its key in POOLS."""


class BudgetClaim(Record, frozen=True, kw_only=True):
    """What one pool takes of the fleet's budget."""

    desired: int = 0
    unavailable: int = 0
    disruptions: dict[str, int] = {}
    """As in the pool's record, by slots of the fleet's window."""
    resets: dict[str, int] = {}
    """The same of GPU resets and reboots."""
    revision: int = 0
    """Of the pool's record that this was decided on: as long as that stands, somebody may still be
    about to write what was claimed, and the claim may only grow."""


class FleetBudgetRecord(Record, frozen=True, kw_only=True):
    """POOLS `fleet-budget`: what each pool takes of the fleet's budget, claimed before it acts."""

    claims: dict[str, BudgetClaim] = {}
