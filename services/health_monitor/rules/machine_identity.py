"""Whether a node's agent runs on another machine than the one whose health is recorded. Pure.

Others may give a name again before the end of its earlier node is known, and where NODES was lost
that end is never published. GPUs keep their UUIDs over resets, reboots and repairs, so a machine
with none of the known ones is another. One without any names no machine.
"""

import msgspec

from schemas.health_records import HealthRecord
from schemas.node_events import Registered
from services.health_monitor.rules.health_state import working_of


def of_machine(record: HealthRecord, event: Registered) -> HealthRecord:
    """The record with the machine that registers; what an earlier one had does not count for it.

    What has been judged of the new boot already is kept, as is a verdict that it led to.
    """
    work = working_of(record)
    gpus = tuple(each.uuid for each in event.gpus if each.uuid)
    if not gpus or gpus == work.gpus:
        return record
    another = bool(work.gpus) and not {*gpus} & {*work.gpus}
    detail = msgspec.to_builtins(msgspec.structs.replace(work, gpus=gpus))
    record = msgspec.structs.replace(record, detail=detail)
    own = tuple(each for each in record.recent if each.boot_id == event.boot_id)
    if not another or any(each.result == "unhealthy" for each in own):
        return record
    blank = HealthRecord(pool=record.pool, node=record.node)
    return msgspec.structs.replace(blank, lost=record.lost, recent=own, detail=record.detail)
