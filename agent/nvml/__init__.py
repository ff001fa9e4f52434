"""What NVML says of this host's GPUs. The one place that imports `pynvml`.

Every call here may hang and must be made through a ProbeThread. A reading that a GPU does not have
(MIG, consumer cards, old drivers) is absent, and is not asked for again until NVML starts anew. A
GPU that is lost, or whose calls fail, is a `Trouble`; what that means is decided elsewhere.
"""

from agent.nvml.answers import GpuProcess as GpuProcess
from agent.nvml.answers import Inventory as Inventory
from agent.nvml.answers import NodeSample as NodeSample
from agent.nvml.answers import NvmlUnavailable as NvmlUnavailable
from agent.nvml.answers import Trouble as Trouble
from agent.nvml.events import NvmlEvents as NvmlEvents
from agent.nvml.events import XidEvent as XidEvent
from agent.nvml.session import Nvml as Nvml
