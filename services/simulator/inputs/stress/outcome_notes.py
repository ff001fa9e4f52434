"""What changed the outcome of a stress run and is not in its file, in sentences. Pure."""

from collections.abc import Iterator, Sequence

from services.simulator.inputs.scenario.original_dialect import FATAL_XIDS
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.report.report_format import PoolBudget

WITHOUT = "; `compat: original` runs without breaker and budget"


def limit_notes(budgets: Sequence[PoolBudget], *, is_original: bool) -> Iterator[str]:
    """What the breaker and the budget held back."""
    remedy = WITHOUT if is_original else ""
    opened = [each for each in budgets if each.breaker_opened]
    if opened:
        times = sum(sum(each.breaker_opened.values()) for each in opened)
        seconds = sum(each.breaker_open_seconds for each in opened)
        yield (
            f"the breaker opened {_times(times)} in {_pools(len(opened))}, for {seconds:.0f} s "
            f"together, in which unhealthy nodes were not repaired{remedy}"
        )
    spent = [each for each in budgets if each.full_seconds]
    if spent:
        seconds = sum(each.full_seconds for each in spent)
        yield (
            f"the budget of {_pools(len(spent))} was spent for {seconds:.0f} s together, in which "
            f"no further node was taken out of service{remedy}"
        )


def policy_notes(done: Sequence[ScheduledFailure]) -> Iterator[str]:
    """Which XIDs this health policy takes for more or for less than the original does."""
    fatal = {each.xid for each in done if each.xid and each.fatal}
    mild = {each.xid for each in done if each.xid and not each.fatal}
    if more := sorted(fatal - FATAL_XIDS):
        yield f"fatal by this health policy and not in the original: XID {_numbers(more)}"
    if less := sorted(mild & FATAL_XIDS):
        yield f"fatal in the original and not by this health policy: XID {_numbers(less)}"


def _numbers(codes: Sequence[int]) -> str:
    return ", ".join(map(str, codes))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _pools(count: int) -> str:
    return "one pool" if count == 1 else f"{count} pools"
