"""Says in the answer of `navarch why` that a stop holds what would be done. Pure."""

from datetime import datetime
from typing import Final

import msgspec

from schemas.pool_records import PoolRecord
from schemas.stops import FLEET, Stop, StopState, scope_of
from services.fleet_client.why_answer import WhyAnswer

UNDECIDED: Final = "Is it running? `nats micro ls` lists it."
UNFILLED: Final = "Is the pool-manager running? `nats micro ls` lists it."
"""How a line ends that knows no reason: the stop is one."""


def with_stops(answer: WhyAnswer, stops: StopState, pool: PoolRecord, now: datetime) -> WhyAnswer:
    """Return the answer, with what stops the pool first; as it is where nothing does."""
    providers = {pool.spec.provider, *(each.name for each in pool.spec.providers)}
    scopes = FLEET, scope_of(pool.name, ""), *(scope_of("", each) for each in sorted(providers))
    stop = stops.find(scopes, now)
    if stop is None or (answer.kind == "saga" and not stop.running):
        return answer
    left = tuple(each for each in answer.now if not each.endswith((UNDECIDED, UNFILLED)))
    return msgspec.structs.replace(answer, now=(_sentence(stop), *left))


def _sentence(stop: Stop) -> str:
    held = "nothing automatic begins"
    if stop.running:
        held += ", and open sagas that no operator asked for wait before what has no undo"
    return f"{stop.scope} is stopped {stop}: {held}; to see what waits: navarch resume --dry-run"
