"""State over a restart of the agent: nothing is reported twice, nothing is missed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from agent.agent_state_file import SAVE_SECONDS, AgentState, AgentStateFile
from agent.faults.sample_changes import SampleChange, missing
from agent.gpu_monitor import EarlierRun, GpuMonitor
from agent.json_file import FILE_BYTES_MAX
from agent.observations import GpuInventory, GpuState, NvmlFailure
from agent.sources.blocking_calls import ProbeThread
from agent.sources.nvml import Nvml
from schemas.node_events import GpuIdentity
from services.provisioner.providers.local_gpus import simulated_gpus, write_state
from tests.agent.reports import Reports

NOW = datetime(2026, 11, 21, tzinfo=UTC)
GPUS = simulated_gpus("node-7", 3)
ELSEWHERE = simulated_gpus("node-8", 3)


class Runs:
    """One host on which an agent's watch runs again and again."""

    def __init__(self, library: Path, state: Path) -> None:
        self._library = str(library)
        self._state = state
        self._memory = GpuState()
        self._reports = Reports()
        self.watch: GpuMonitor | None = None

    async def run(
        self,
        *orders: str,
        count: int = 3,
        same_boot: bool = True,
        pause_seconds: float = 5.0,
        gpus: tuple[GpuIdentity, ...] = GPUS,
    ) -> list[tuple[str, int, str]]:
        """Run once with the GPUs as ordered; give what was reported."""
        write_state(self._state, gpus[:count], orders)
        self._reports.restart(same_boot=same_boot)
        nvml = Nvml(self._library)
        self.watch = GpuMonitor(
            nvml,
            ProbeThread("nvml test"),
            deadline_seconds=1.0,
            on_change=self._reports.changed,
            observe=self._reports.observe,
            before=EarlierRun(self._memory, same_boot=same_boot, pause_seconds=pause_seconds),
        )
        await self.watch.open()
        await self.watch.sample()
        await self.watch.sample()
        self._memory = msgspec.json.decode(
            msgspec.json.encode(self.watch.remember()), type=GpuState
        )
        nvml.close()
        return self._reports.kinds()


@pytest.fixture
def runs(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """A host that no agent has seen yet."""
    monkeypatch.setenv("NAVARCH_NVML_STATE", str(tmp_path / "state"))
    return Runs(nvml_library, tmp_path / "state")


async def test_an_old_error_is_not_reported_again(runs: Runs):
    """Errors, bad states and lost GPUs that were reported before a restart are reported once."""
    orders = ("gpu 0 ecc_dbe 2", "gpu 1 remap_failed 1", "gpu 1 throttle 0x48", "gpu 2 lost 1")
    first = await runs.run(*orders)
    assert sorted(first) == [
        ("ecc_dbe", 0, ""),
        ("gpu_lost", 2, ""),
        ("row_remap", 1, "failed"),
        ("thermal", 1, "hw_slowdown"),
    ]
    assert await runs.run(*orders) == []
    assert await runs.run(*orders) == []


RISES = [
    ("gpu 0 ecc_dbe 2", ("ecc_dbe", 0, "")),
    ("gpu 0 retired_dbe 1", ("page_retirement", 0, "")),
    ("gpu 0 remapped_uncorrectable 1", ("row_remap", 0, "uncorrectable")),
    ("gpu 0 nvlink_errors 3", ("nvlink", 0, "errors")),
    ("gpu 0 nvlinks_down 2", ("nvlink", 0, "down")),
    ("gpu 0 pcie_width 8", ("pcie", 0, "width")),
    ("gpu 0 pcie_replays 500", ("pcie", 0, "replays")),
    ("gpu 0 ecc_sbe 500", ("ecc_sbe", 0, "")),
]


@pytest.mark.parametrize(("order", "expected"), RISES, ids=[each[0] for each in RISES])
async def test_what_rose_between_two_runs_is_reported_once(
    runs: Runs, order: str, expected: tuple[str, int, str]
):
    """A counter that rose while the agent was down is a fault of the next run alone."""
    assert await runs.run() == []
    assert await runs.run(order) == [expected]
    assert await runs.run(order) == []


async def test_what_rose_slowly_is_no_burst(runs: Runs):
    """Corrected errors and replays of a long pause are not held for a burst."""
    await runs.run()
    orders = ("gpu 0 pcie_replays 500", "gpu 0 ecc_sbe 500")
    assert await runs.run(*orders, pause_seconds=86_400) == []


async def test_a_reset_resets_a_counter(runs: Runs):
    """Fewer uncorrectable errors than before are those since a reset, and new."""
    await runs.run("gpu 0 ecc_dbe 5")
    assert await runs.run("gpu 0 ecc_dbe 2") == [("ecc_dbe", 0, "")]


async def test_a_boot_reports_states_again(runs: Runs):
    """A boot reports bad states and volatile errors again; other counts are reported if they rose.

    NVLinks come up after the agent does, so their count is not compared with the last boot's.
    """
    orders = ("gpu 0 remap_failed 1", "gpu 0 ecc_dbe 1", "gpu 1 retired_dbe 4")
    await runs.run(*orders)
    found = await runs.run(*orders, "gpu 2 nvlinks_down 18", same_boot=False)
    assert sorted(found) == [("ecc_dbe", 0, ""), ("row_remap", 0, "failed")]
    found = await runs.run("gpu 1 retired_dbe 5", "gpu 1 pcie_width 4", same_boot=False)
    assert sorted(found) == [("page_retirement", 1, ""), ("pcie", 1, "width")]


async def test_a_gpu_that_vanished_meanwhile_is_reported_once(runs: Runs):
    """A vanished GPU is a fault of the next run, and is still known by address and by UUID."""
    await runs.run()
    assert await runs.run(count=2) == [("gpu_lost", 2, "vanished")]
    assert await runs.run(count=2) == []
    assert runs.watch is not None
    assert runs.watch.gpus.by_pci(GPUS[2].pci) == GPUS[2]
    assert runs.watch.gpus.gpus == GPUS[:2]
    assert await runs.run() == []
    assert runs.watch.gpus.gone == ()
    assert await runs.run(count=2) == [("gpu_lost", 2, "vanished")]


async def test_a_gpu_that_cannot_be_found_keeps_its_name(runs: Runs):
    """A GPU that answers as lost from the start is one fault, with who it was."""
    await runs.run()
    order = "fail nvmlDeviceGetUUID 15 2"
    assert await runs.run(order) == [("gpu_lost", 2, "")]
    assert runs.watch is not None
    assert runs.watch.gpus.of_change(SampleChange("gpu_lost", 2, "")) == GPUS[2]
    assert await runs.run(order) == []


async def test_other_hardware_is_no_loss(runs: Runs):
    """Nothing has vanished after a boot on another host, or with a GPU replaced in its place."""
    await runs.run()
    assert await runs.run(gpus=ELSEWHERE, same_boot=False) == []
    assert await runs.run(gpus=(*ELSEWHERE[:2], GPUS[2]), same_boot=False) == []


def test_a_boot_reports_missing_gpus_again():
    """A GPU that was gone before a boot and still is, is missing; one that fails may be it."""
    before = GpuState(present=GPUS[:2], gone=GPUS[2:])
    now = GpuInventory(GPUS[:2])
    assert missing(before, now, same_boot=True) == GPUS[2:]
    assert missing(before, now, same_boot=False) == GPUS[2:]
    lost = GpuInventory(GPUS[:2], failures=(NvmlFailure(2, "gpu_lost", "lost"),))
    assert missing(GpuState(present=GPUS), lost, same_boot=True) == GPUS[2:]


def test_before_nvml_answers_this_boots_gpus_are_known():
    """A line's GPU is named even where the driver hangs; another boot's GPUs may be others."""
    memory = GpuState(present=GPUS[:2], gone=GPUS[2:])

    def watch(*, same_boot: bool) -> GpuMonitor:
        return GpuMonitor(
            Nvml("/missing"),
            ProbeThread("unused"),
            deadline_seconds=1.0,
            on_change=lambda _: None,
            before=EarlierRun(memory, same_boot=same_boot),
        )

    assert [watch(same_boot=True).gpus.by_pci(gpu.pci) for gpu in GPUS] == list(GPUS)
    assert watch(same_boot=False).gpus.by_pci(GPUS[0].pci) is None


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"\xff", b"[1]", b'{"gpus": 7}', b"x" * (FILE_BYTES_MAX + 1)]
)
def test_a_memory_that_cannot_be_read_is_empty(tmp_path: Path, content: bytes | None):
    """Missing, broken and huge files mean that nothing is remembered."""
    path = tmp_path / "agent_state.json"
    if content is not None:
        path.write_bytes(content)
    assert AgentStateFile(path).load() == AgentState()


def test_a_memory_is_written_seldom_and_whole(tmp_path: Path):
    """A change is written, not sooner than the last write allows, and at the end always."""
    path = tmp_path / "agent_state.json"
    file = AgentStateFile(path)
    memory = AgentState(boot_id="boot", gpus=GpuState(present=GPUS))
    file.save(memory, NOW, 0.0)
    assert AgentStateFile(path).load() == msgspec.structs.replace(memory, time=NOW)
    tested = msgspec.structs.replace(memory, tested=True)
    file.save(tested, NOW, SAVE_SECONDS - 1)
    assert not AgentStateFile(path).load().tested
    file.save(tested, NOW, SAVE_SECONDS)
    assert AgentStateFile(path).load().tested
    later = NOW + timedelta(seconds=60)
    file.save(tested, later, 60.0)
    assert AgentStateFile(path).load().age_seconds(later) == 60
    file.save(tested, later, 60.0, last=True)
    assert AgentStateFile(path).load().age_seconds(later) == 0
    AgentStateFile(tmp_path / "missing" / "agent_state.json").save(memory, NOW, 0.0)
    assert [each.name for each in tmp_path.iterdir()] == ["agent_state.json"]
