"""What NVML says of this host's GPUs. The one place that imports `pynvml`.

Every call here may hang and must be made through a ProbeThread. A reading that a GPU does not have
(MIG, consumer cards, old drivers) is absent, and is not asked for again until NVML starts anew. A
GPU that is lost, or whose calls fail, is a `Trouble`; what that means is decided elsewhere.
"""

from agent.sources.nvml.nvml_events import NvmlEvents as NvmlEvents
from agent.sources.nvml.nvml_events import XidEvent as XidEvent
from agent.sources.nvml.nvml_session import Nvml as Nvml
from agent.sources.nvml.nvml_values import GpuProcess as GpuProcess
from agent.sources.nvml.nvml_values import Inventory as Inventory
from agent.sources.nvml.nvml_values import NodeSample as NodeSample
from agent.sources.nvml.nvml_values import NvmlUnavailable as NvmlUnavailable
from agent.sources.nvml.nvml_values import Trouble as Trouble
