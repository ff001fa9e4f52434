"""Decides which GPU of a node gets no new work, while the node stays in service. Pure.

A rule of the policy says `cordon: gpu` where the other GPUs of the node stay usable, and the pool
says whether that is done. One GPU of a node at most: a second has a cause in common with it.
"""

from typing import Final

from schemas.health_records import HealthRecord
from schemas.node_events import Fault
from services.health_monitor.rules.health_policy import Judgement
from services.health_monitor.rules.health_state import Working

CORDON_SECONDS: Final = 365 * 86_400.0
"""Until a reset, a reboot or an uncordon ends it, as they end what is unhealthy."""


def is_gpu_cordon(record: HealthRecord, work: Working, fault: Fault, judged: Judgement) -> bool:
    """Return whether an unhealthy result takes its GPU alone out of use, in a pool that does so."""
    if judged.cordon == "node" or fault.gpu_index < 0 or record.status == "unhealthy":
        return False
    return set(cordon_gpus(work)) <= {fault.gpu_index}


def cordon_gpus(work: Working) -> tuple[int, ...]:
    """The GPUs that are to get no new work, by what is in force."""
    return tuple(sorted({each.gpu_index for each in work.conditions.values() if each.cordon}))
