"""Which of the GPUs that were here before are gone. Pure."""

from agent.observations import GpuInventory, GpuState
from schemas.node_events import GpuIdentity

GONE_MAX = 64


def missing(
    before: GpuState, inventory: GpuInventory, *, same_boot: bool
) -> tuple[tuple[GpuIdentity, ...], tuple[GpuIdentity, ...]]:
    """Compare with the earlier state: (all missing GPUs, those of them to report).

    A GPU at another's PCI address is a replacement, and so is other hardware after a boot with no
    fewer GPUs than before. A GPU that NVML reports as lost is missing too, but its failure is
    reported already. A boot reports missing GPUs again, because the node's health was reset.
    """
    here = {gpu.uuid for gpu in inventory.gpus}
    places = {gpu.pci for gpu in inventory.gpus if gpu.pci}
    seen = before.present + before.gone
    counted = len(inventory.gpus) + len(inventory.failures)
    if not same_boot and counted >= len(seen):
        return (), ()
    gone = tuple(gpu for gpu in seen if gpu.uuid not in here and gpu.pci not in places)[:GONE_MAX]
    published = {gpu.uuid for gpu in before.gone} if same_boot else set()
    answered = {failure.index for failure in inventory.failures}
    new = tuple(gpu for gpu in gone if gpu.uuid not in published and gpu.index not in answered)
    return gone, new
