"""Reads what the pool-manager stored last about pools, for the time in which it does not answer."""

from collections.abc import Callable
from datetime import datetime

from schemas.messages import decoder
from schemas.pool_records import pool_key
from schemas.present_answers import PresentAnswer
from schemas.topology import ANSWERS
from services.bus.bucket_mirror import readable, readable_record
from services.bus.port import Bus
from services.operator_text.quantities import rough_time
from services.primitives.errors import BusError

_answers = decoder(PresentAnswer)


async def stored_answer(bus: Bus, pool: str) -> PresentAnswer | None:
    """Return the last answer about a pool; None: there is none that can be read."""
    try:
        entry = await bus.get(ANSWERS, pool_key(pool))
    except BusError:  # a pool-manager of the release before makes no such bucket
        return None
    found: PresentAnswer | None = readable_record(entry, _answers)
    return found


async def stored_lines(bus: Bus, now: datetime, sees: Callable[[str], bool]) -> list[str]:
    """Return what each pool that is seen waited for by its last answer, with the age."""
    try:
        entries = await bus.entries(ANSWERS)
    except BusError:  # as above
        return []
    return [_line(each, now) for _, each in readable(entries, _answers) if sees(each.pool)]


def _line(answer: PresentAnswer, now: datetime) -> str:
    age = rough_time((now - answer.at).total_seconds())
    nodes = sum(len(each.nodes) for each in answer.groups) + answer.more
    waits = " ".join(each.text for each in answer.blocked) or "it waited for nothing."
    named = f" Nodes that waited: {nodes} (navarch why {answer.pool})." if nodes else ""
    return f"{answer.pool}, as stored {age} ago: {waits}{named}"
