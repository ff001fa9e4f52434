"""Resets and reboots: refused where a job may run, done once under one key."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.faults.fault_builder import GpuMap
from agent.maintenance.reset_and_reboot import ActionDependencies, ResetAndReboot
from agent.settings import AgentConfig
from agent.sources.nvml import GpuProcess
from schemas.agent_commands import ActionResult, RebootRequest, ResetRequest
from services.primitives.clock import SystemClock
from tests.agent.bed import GPUS, Bed

BOOT = "b1"


class Ward:
    """A host to reset and reboot: its tools note how they are called."""

    def __init__(self, directory: Path, bed: Bed) -> None:
        self._directory = directory
        self.bed = bed
        self.cordoned: bool | None = True
        self.running: tuple[GpuProcess, ...] = ()
        self.held = True
        self.root = True

    def make(self, **settings: Any) -> ResetAndReboot:
        """Make the agent's part that resets and reboots, as after a start."""
        config = AgentConfig(pool="training", node="n1", state_dir=str(self._directory), **settings)
        return ResetAndReboot(
            config,
            ActionDependencies(
                clock=SystemClock(),
                environment={"PATH": f"{self.bed.directory}:/usr/bin:/bin"},
                boot_id=BOOT,
                root=self.root,
                gpus=lambda: GpuMap(GPUS),
                cordoned=self._cordoned,
                processes=self._processes,
                release=self._released,
            ),
        )

    async def _cordoned(self) -> bool | None:
        return self.cordoned

    async def _processes(self) -> tuple[GpuProcess, ...]:
        return self.running

    @asynccontextmanager
    async def _released(self) -> AsyncIterator[None]:
        self.held = False
        yield
        self.held = True


@pytest.fixture
def ward(tmp_path: Path, bed: Bed) -> Ward:
    """A host that is cordoned and idle."""
    return Ward(tmp_path, bed)


async def reset(executor: ResetAndReboot, key: str = "s/reset", *gpus: str) -> ActionResult:
    """Ask for a reset."""
    data = msgspec.json.encode(ResetRequest(key=key, gpus=gpus))
    return msgspec.json.decode(await executor.reset(data, {}), type=ActionResult)


async def reboot(executor: ResetAndReboot, boot_id: str = BOOT) -> ActionResult:
    """Ask for a reboot."""
    data = msgspec.json.encode(RebootRequest(key="s/reboot", boot_id=boot_id))
    return msgspec.json.decode(await executor.reboot(data, {}), type=ActionResult)


async def test_the_gpu_that_is_named_is_reset(ward: Ward) -> None:
    """The UUID names the GPU, the agent is off it, the answer says when and what was printed."""
    ward.bed.install("nvidia-smi", script="echo All done.")
    before = datetime.now(UTC)
    acted = await reset(ward.make(), "s/reset", GPUS[1].uuid)

    assert [f"--gpu-reset -i {GPUS[1].uuid}"] == ward.bed.asked("nvidia-smi")
    assert (True, "All done.", "", BOOT) == (acted.ok, acted.detail, acted.refused, acted.boot_id)
    assert acted.at is not None
    assert before <= acted.at <= datetime.now(UTC)


@pytest.mark.parametrize("others", [("GPU-elsewhere",), ("GPU-elsewhere", "")])
async def test_a_reset_of_another_machines_gpu_resets_none(
    ward: Ward, others: tuple[str, ...]
) -> None:
    """Every GPU of this host was reset; one that is here is reset alone."""
    ward.bed.install("nvidia-smi")
    acted = await reset(ward.make(), "s/reset", *others)
    mixed = await reset(ward.make(), "t/reset", *others, GPUS[0].uuid)

    assert (acted.ok, acted.detail) == (False, "this host has none of the GPUs that are named")
    assert mixed.ok
    assert [f"--gpu-reset -i {GPUS[0].uuid}"] == ward.bed.asked("nvidia-smi")


async def test_one_that_cannot_be_reset_alone_is_reset_with_all(ward: Ward) -> None:
    """GPUs on one fabric go together; no job runs on any of them."""
    ward.bed.install("nvidia-smi", script='[ "$2" = -i ] && echo "needs its peers" && exit 3')
    acted = await reset(ward.make(), "s/reset", GPUS[0].uuid)

    assert [f"--gpu-reset -i {GPUS[0].uuid}", "--gpu-reset"] == ward.bed.asked("nvidia-smi")
    assert acted.ok
    assert "needs its peers" in acted.detail


async def test_what_fails_says_what_the_tool_said(ward: Ward) -> None:
    """Exit status and words, and no refusal: asking again would not help."""
    ward.bed.install("nvidia-smi", code=7, script="echo In use by another client")
    acted = await reset(ward.make())

    assert (False, "") == (acted.ok, acted.refused)
    assert "exit status 7: In use by another client" in acted.detail


@pytest.mark.parametrize(
    ("cordoned", "running", "words"),
    [
        (False, (), "not cordoned"),
        (None, (), "cannot be known now"),
        (True, (GpuProcess(1, 4711),), "4711 on GPU 1"),
    ],
)
async def test_a_reset_is_refused_where_a_job_may_run(
    ward: Ward, cordoned: bool | None, running: tuple[GpuProcess, ...], words: str
) -> None:
    """Nothing is run, the reason is said, and once it is gone the same key is served."""
    ward.bed.install("nvidia-smi")
    executor = ward.make()
    ward.cordoned, ward.running = cordoned, running
    refused = await reset(executor)
    assert (False, True) == (refused.ok, words in refused.refused)
    assert [] == ward.bed.asked("nvidia-smi")

    ward.cordoned, ward.running = True, ()
    assert (await reset(executor)).ok


async def test_a_key_is_served_once(ward: Ward) -> None:
    """A key is served once even after a restart of the agent; another key is another reset."""
    ward.bed.install("nvidia-smi")
    first = await reset(ward.make())
    assert first == await reset(ward.make())
    assert 1 == len(ward.bed.asked("nvidia-smi"))

    await reset(ward.make(), "t/reset")
    assert 2 == len(ward.bed.asked("nvidia-smi"))


async def test_two_that_ask_at_once_have_one_reset(ward: Ward) -> None:
    """The second waits for the first, and has its answer."""
    ward.bed.install("nvidia-smi")
    executor = ward.make()
    one, other = await asyncio.gather(reset(executor), reset(executor))
    assert one == other
    assert 1 == len(ward.bed.asked("nvidia-smi"))


async def test_an_unreadable_memory_of_keys_is_survived(ward: Ward, tmp_path: Path) -> None:
    """A broken file forgets what was done; nothing more."""
    ward.bed.install("nvidia-smi")
    (tmp_path / "completed_actions.json").write_bytes(b"{")
    assert (await reset(ward.make())).ok


async def test_a_host_without_the_tool_says_so(ward: Ward) -> None:
    """The reset has failed, and will not do better if asked again."""
    acted = await reset(ward.make(reset_command="no-such-tool"))
    assert (False, "") == (acted.ok, acted.refused)


async def test_a_reboot_is_answered_and_then_done(ward: Ward) -> None:
    """Once, however often it is asked for."""
    begun = ward.bed.directory / "begun"
    ward.bed.install("systemctl", script=f"touch {begun}")
    executor = ward.make()
    first, second = await reboot(executor), await reboot(executor)
    assert (True, True) == (first.ok, second.ok)
    async with asyncio.timeout(60):
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
    assert begun.exists()
    assert (await reboot(executor)).ok
    assert ["reboot"] == ward.bed.asked("systemctl")


async def test_another_boot_is_not_rebooted(ward: Ward) -> None:
    """The boot that was to end has ended already."""
    ward.bed.install("systemctl")
    acted = await reboot(ward.make(), "b0")
    assert (True, "it has another boot already") == (acted.ok, acted.detail)
    assert [] == ward.bed.asked("systemctl")


async def test_a_node_that_is_not_cordoned_is_not_rebooted(ward: Ward) -> None:
    """The reboot is refused, and may be asked for again."""
    ward.bed.install("systemctl")
    ward.cordoned = False
    acted = await reboot(ward.make())
    assert (False, True) == (acted.ok, "not cordoned" in acted.refused)
    assert [] == ward.bed.asked("systemctl")


async def test_an_agent_that_may_not_reboot_says_what_to_do(ward: Ward) -> None:
    """An agent without root needs a command of its own, and the answer names its setting."""
    ward.bed.install("systemctl")
    ward.root = False
    acted = await reboot(ward.make())
    assert (False, "") == (acted.ok, acted.refused)
    assert "NAVARCH_REBOOT_COMMAND" in acted.detail


async def test_a_reboot_that_failed_is_reported_to_a_repeated_command(ward: Ward) -> None:
    """The answer has what the command said."""
    ward.bed.install("restart-it", code=4, script="echo not today")
    executor = ward.make(reboot_command="restart-it now")
    assert (await reboot(executor)).ok
    async with asyncio.timeout(60):
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
    acted = await reboot(executor)
    assert not acted.ok
    assert "restart-it" in acted.detail
    assert "ends with 4: not today" in acted.detail
