"""NVML access to this host's GPUs; the only package that imports `pynvml`.

Every call may hang and must be made through a ProbeThread. A reading that a GPU does not support
(MIG, consumer cards, old drivers) is absent and not read again until NVML restarts. A GPU that is
lost, or whose calls fail, is an `NvmlFailure`.
"""

from agent.observations import GpuInventory as GpuInventory
from agent.observations import NodeSample as NodeSample
from agent.observations import NvmlFailure as NvmlFailure
from agent.observations import XidEvent as XidEvent
from agent.sources.nvml.nvml_session import Nvml as Nvml
from agent.sources.nvml.nvml_session import NvmlEvents as NvmlEvents
from agent.sources.nvml.nvml_values import GpuProcess as GpuProcess
from agent.sources.nvml.nvml_values import NvmlUnavailable as NvmlUnavailable
