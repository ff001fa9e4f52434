"""The table of conditions: a state of the host, a GPU or a link that holds while it is seen.

A condition is one row here and one line of a reader (`gpu_reader`), with a test that gives the
reader an order file or a tree of files. The health policy rates it by its name, kind and subcode;
`severe` and `remedy` are what the agent says where the fleet's verdict is not known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from schemas.agent_settings import AgentSettings
from schemas.enums import RECOVERY_ACTION_CODE, Action, FaultKind
from schemas.held_conditions import Reading
from schemas.instance_type_catalogue import DRIVER_WAIT

ReaderName = Literal["nvml", "rdma"]
Scope = Literal["gpu", "host"]
RDMA_SECONDS: Final = 30.0
"""How often the RDMA devices are counted once the boot checks are over."""
FAILING_SECONDS: Final = 120.0
"""How long the driver, or a GPU, answers nothing before the host gets no work: for a minute a
driver may be busy with a reset or a dump."""
READERS: Final[dict[ReaderName, str]] = {
    "nvml": f"by NVML, every {AgentSettings().sample_interval:g}s unless `sample_interval` differs",
    "rdma": f"in /sys/class/infiniband, every {RDMA_SECONDS:g}s",
}
"""Reader -> what it reads, and at which interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Declares one condition: a row of the table."""

    name: str
    reader: ReaderName = "nvml"
    scope: Scope = "gpu"
    kind: FaultKind
    code: int = 0
    subcode: str = ""
    """Empty: the reader's own word."""
    begins_seconds: float = 0.0
    """How long it is seen before it holds."""
    ends_seconds: float = 10.0
    """How long it is not seen before it is over."""
    of_reader: bool = False
    """It says whether the driver, or the GPU, answers: that is known where nothing else is."""
    severe: bool = False
    """The host, or the GPU, is to get no work."""
    remedy: Action
    words: str
    example_word: str = ""
    """A reader's own word, and metrics at a begin, as a policy may ask for them."""
    example_metrics: Mapping[str, Reading] = field(default_factory=dict)


CONDITIONS: Final = (
    # --- the driver as a whole ------------------------------------------------------------------
    Declared(
        name="driver-not-loaded",
        scope="host",
        of_reader=True,
        kind="probe_failed",
        subcode="not_loaded",
        begins_seconds=DRIVER_WAIT,  # `driver_wait` in its place
        remedy="reboot",
        words="the driver is not loaded",
    ),
    Declared(
        name="driver-mismatch",
        scope="host",
        of_reader=True,
        kind="probe_failed",
        subcode="mismatch",
        begins_seconds=10.0,
        remedy="reboot",
        words="the driver's library is of another version than its module",
    ),
    Declared(
        name="driver-gone",
        scope="host",
        of_reader=True,
        kind="probe_failed",
        remedy="inspect",
        words="the driver does not answer any more",
    ),
    Declared(
        name="driver-failing",
        scope="host",
        of_reader=True,
        kind="probe_failed",
        subcode="failing",
        begins_seconds=FAILING_SECONDS,
        severe=True,
        remedy="reboot",
        words="every call into the driver fails",
    ),
    Declared(
        name="driver-hangs",
        scope="host",
        of_reader=True,
        kind="probe_hung",
        remedy="inspect",
        words="a call into the driver hangs",
    ),
    Declared(
        name="driver-hung",
        scope="host",
        of_reader=True,
        kind="probe_hung",
        subcode="lasting",
        begins_seconds=FAILING_SECONDS,
        severe=True,
        remedy="reboot",
        words="the driver has hung for two minutes",
    ),
    # --- a GPU that is not there, or does not answer --------------------------------------------
    Declared(
        name="gpu-lost",
        of_reader=True,
        kind="gpu_lost",
        severe=True,
        remedy="replace",
        words="the GPU is lost",
    ),
    Declared(
        name="gpu-vanished",
        of_reader=True,
        kind="gpu_lost",
        subcode="vanished",
        severe=True,
        remedy="replace",
        words="the GPU is no longer listed",
    ),
    Declared(
        name="gpu-count",
        scope="host",
        kind="gpu_count",
        begins_seconds=30.0,
        severe=True,
        remedy="replace",
        words="the host has another number of GPUs than its type",
    ),
    Declared(
        name="gpu-recovery",
        of_reader=True,
        kind="xid",
        code=RECOVERY_ACTION_CODE,
        severe=True,
        remedy="reset_gpu",
        words="the GPU asks for a recovery",
        example_word="GPU Reset Required",
    ),
    Declared(
        name="gpu-failing",
        of_reader=True,
        kind="probe_failed",
        remedy="inspect",
        words="a reading of the GPU fails",
    ),
    Declared(
        name="gpu-silent",
        of_reader=True,
        kind="probe_failed",
        subcode="silent",
        begins_seconds=FAILING_SECONDS,
        severe=True,
        remedy="reboot",
        words="no reading of the GPU succeeds",
    ),
    # --- memory ---------------------------------------------------------------------------------
    Declared(
        name="row-remap-failed",
        kind="row_remap",
        subcode="failed",
        severe=True,
        remedy="replace",
        words="a row could not be remapped",
        example_metrics={"remap_failed": True},
    ),
    Declared(
        name="row-remap-pending",
        kind="row_remap",
        subcode="pending",
        remedy="reset_gpu",
        words="a row remap waits for a GPU reset",
        example_metrics={"remap_pending": True},
    ),
    # --- links ----------------------------------------------------------------------------------
    Declared(
        name="nvlinks-all-down",
        kind="nvlink",
        subcode="all_down",
        begins_seconds=5.0,
        severe=True,
        remedy="reset_gpu",
        words="all NVLinks are down",
    ),
    Declared(
        name="nvlinks-down",
        kind="nvlink",
        subcode="down",
        remedy="reset_gpu",
        words="NVLinks are down",
    ),
    Declared(
        name="nvlinks-slow",
        kind="nvlink",
        subcode="slow",
        begins_seconds=60.0,
        ends_seconds=60.0,
        remedy="reset_gpu",
        words="NVLinks are slower than they were, or than the type's",
    ),
    Declared(
        name="fabric-left",
        kind="fabric",
        subcode="left",
        remedy="inspect",
        words="the GPU has not joined the NVLink fabric",
    ),
    Declared(
        name="fabric-failed",
        kind="fabric",
        subcode="failed",
        remedy="inspect",
        words="joining the NVLink fabric failed",
    ),
    Declared(
        name="fabric-unhealthy",
        kind="fabric",
        subcode="health",
        remedy="inspect",
        words="the NVLink fabric is not healthy",
    ),
    Declared(
        name="pcie-width",
        kind="pcie",
        subcode="width",
        begins_seconds=5.0,
        remedy="reboot",
        words="the PCIe link is narrower than it was, or than the type's",
        example_metrics={"pcie_width": 8},
    ),
    Declared(
        name="pcie-generation",
        kind="pcie",
        subcode="generation",
        begins_seconds=60.0,
        ends_seconds=60.0,
        remedy="reboot",
        words="the PCIe link is slower under load than it was, or than the type's",
    ),
    Declared(
        name="rdma-devices",
        reader="rdma",
        scope="host",
        kind="fabric",
        subcode="rdma",
        begins_seconds=60.0,
        ends_seconds=30.0,
        remedy="inspect",
        words="an RDMA port is not as it was, or as the type's",
    ),
    # --- what slows a GPU -----------------------------------------------------------------------
    Declared(
        name="slowed-power",
        kind="power",
        subcode="power_brake",
        begins_seconds=5.0,
        ends_seconds=60.0,
        remedy="inspect",
        words="the hardware slows the GPU: power brake",
    ),
    Declared(
        name="slowed-hardware",
        kind="thermal",
        subcode="hw_slowdown",
        begins_seconds=5.0,
        ends_seconds=60.0,
        remedy="inspect",
        words="the hardware slows the GPU: too hot or too much power",
    ),
)
BY_NAME: Final = {each.name: each for each in CONDITIONS}
