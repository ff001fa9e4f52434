"""Reads and appends to a saga's log.

What does not belong in a log (unreadable, or not allowed at its place) is skipped and logged
loudly: the guard keeps every well-behaved writer out, so it was put there by hand, and it must not
stop the saga. Skipping depends on the log alone, so all readers agree.
"""

import logging
from collections.abc import Mapping
from typing import Any

from schemas import subjects
from schemas.messages import encode
from schemas.saga_log_entries import STATUSES, WHOLE, SagaEntry, StepEntry, saga_codec
from schemas.topology import SAGAS
from services.bus.port import Bus, Stored
from services.saga.saga_state import CorruptLogError, SagaState, fold, skip

log = logging.getLogger(__name__)


def decode_entry(stored: Stored) -> Any:
    """Decode an entry of a saga's log."""
    return saga_codec.decode(stored.data)


def saga_of(stored: Stored) -> str:
    """The saga an entry belongs to: the key that keeps its entries in order."""
    parsed = subjects.parse_saga(stored.subject)
    return parsed.saga if parsed else stored.subject


def fold_stored(state: SagaState | None, stored: Stored) -> SagaState | None:
    """Add what is stored to a state; skip what does not belong."""
    entry = saga_codec.decode(stored.data)
    problem = f"{stored.subject}: not an entry of this log"
    if isinstance(entry, SagaEntry) and entry.saga == saga_of(stored):
        try:
            return fold(state, entry, stored.sequence, stored.headers)
        except CorruptLogError as error:
            problem = str(error)
    log.error("skipped in a saga's log", extra={"error": problem})
    return skip(state, stored.sequence)


async def read_state(bus: Bus, saga: str) -> SagaState | None:
    """Read a whole log; None where there is none."""
    state, _ = await read_log(bus, saga)
    return state


async def read_log(bus: Bus, saga: str) -> tuple[SagaState | None, int]:
    """Read a whole log; return its state, None where it has no beginning, and its last sequence."""
    state: SagaState | None = None
    last = 0
    for stored in await bus.read(SAGAS.name, subjects.saga_tree(saga)):
        state, last = fold_stored(state, stored), stored.sequence
    return state, last


async def append(bus: Bus, entry: SagaEntry, expected: int, headers: Mapping[str, str]) -> int:
    """Append an entry if `expected` is still the log's last sequence, else raise Conflict.

    The guard alone recognises a repetition. A message ID would also take an entry for a repetition
    whose log was lost meanwhile, and report as stored what is not.
    """
    step = entry.step if isinstance(entry, StepEntry) else WHOLE
    return await bus.append(
        subjects.saga_entry(entry.saga, step, STATUSES[type(entry)]),
        encode(entry),
        tree=subjects.saga_tree(entry.saga),
        expected=expected,
        headers=headers,
    )
