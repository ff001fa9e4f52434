"""Says in one line what an agent sees of a condition, and since when. Pure."""

from schemas.held_conditions import ConditionView
from services.operator_text.quantities import local_time_text
from services.operator_text.safe_text import escape_line


def condition_line(each: ConditionView, *, silent: bool = False) -> str:
    """Return a condition's line; `silent`: its agent is not heard, so nothing of now is known."""
    where = f" on GPU {each.gpu_index}" if each.gpu_index >= 0 else ""
    state = "is unknown" if each.unknown else "held" if silent else "holds"
    words = f"{each.name}{where} {state} since {local_time_text(each.since)}"
    if each.unknown:
        return escape_line(f"{words}, as it cannot be read: {each.message}")
    unheard = "; whether it holds now is unknown, as the agent is silent" if silent else ""
    return escape_line(f"{words}: {each.message}{unheard}")
