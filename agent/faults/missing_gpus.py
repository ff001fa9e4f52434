"""Which of the GPUs that were here before are gone. Pure."""

from agent.sources.gpu_state_file import GpuMemory
from agent.sources.nvml.nvml_values import Inventory
from schemas.node_events import GpuIdentity

GONE_MAX = 64


def missing(
    before: GpuMemory, inventory: Inventory, *, same_boot: bool
) -> tuple[tuple[GpuIdentity, ...], tuple[GpuIdentity, ...]]:
    """Compare with what was known: (all that are gone, those of them that are to be told).

    A GPU in another's place is a replacement, and so is other hardware after a boot where no fewer
    GPUs are there than before. One that answers as lost is gone too, but its trouble tells so.
    A boot tells anew what it lacks: after it the node is judged afresh.
    """
    here = {gpu.uuid for gpu in inventory.gpus}
    places = {gpu.pci for gpu in inventory.gpus if gpu.pci}
    seen = before.present + before.gone
    counted = len(inventory.gpus) + len(inventory.troubles)
    if not same_boot and counted >= len(seen):
        return (), ()
    gone = tuple(gpu for gpu in seen if gpu.uuid not in here and gpu.pci not in places)[:GONE_MAX]
    told = {gpu.uuid for gpu in before.gone} if same_boot else set()
    answered = {trouble.index for trouble in inventory.troubles}
    new = tuple(gpu for gpu in gone if gpu.uuid not in told and gpu.index not in answered)
    return gone, new
