"""Whether a node's agent runs on another machine than the one whose health is recorded. Pure.

Others may give a name again before the end of its earlier node is known, and where NODES was lost
that end is never published. GPUs keep their UUIDs over resets, reboots and repairs, so a machine
with none of the known ones is another; so is a host all of whose GPUs were exchanged at once. One
without any names no machine.
"""

from typing import Final

import msgspec

from schemas.health_records import HealthRecord
from schemas.node_events import Registered
from services.health_monitor.rules.fault_history import RECENT_MAX
from services.health_monitor.rules.health_state import working_of

GPUS_MAX: Final = 32
"""UUIDs that are remembered of a machine: a list may lack some."""


def of_machine(record: HealthRecord, event: Registered, sequence: int) -> HealthRecord:
    """The record with the machine that registers; what an earlier one had does not count for it.

    What has been judged of the new boot already is kept, as is a verdict that it led to.
    `sequence`: of the event; one that comes after later ones says nothing new.
    """
    work = working_of(record)
    gpus = tuple(each.uuid for each in event.gpus if each.uuid)
    if not gpus or sequence <= max(work.sequences, default=-1):
        return record
    if not work.gpus or {*gpus} & {*work.gpus}:
        known = tuple(dict.fromkeys((*gpus, *work.gpus)))[:GPUS_MAX]
        detail = msgspec.to_builtins(msgspec.structs.replace(work, gpus=known))
        return record if known == work.gpus else msgspec.structs.replace(record, detail=detail)
    own = tuple(each for each in record.recent if each.boot_id == event.boot_id)
    forgotten = len(own) == len(record.recent) == RECENT_MAX
    if forgotten or any(each.result == "unhealthy" for each in own):
        return record
    conditions = {k: each for k, each in work.conditions.items() if each.boot == event.boot_id}
    work = msgspec.structs.replace(work, gpus=gpus, conditions=conditions)
    blank = HealthRecord(pool=record.pool, node=record.node, lost=record.lost, recent=own)
    return msgspec.structs.replace(blank, detail=msgspec.to_builtins(work))
