"""Watches the GPUs through NVML: samples, and from one to the next what turned worse.

The loop never waits for NVML longer than its deadline: a call that hangs is a fault, and so is one
that fails. Each is told once, when it begins. Telemetry is sent as it is and never kept: only the
latest sample is worth anything.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from agent.faults.fault_builder import GpuMap
from agent.faults.missing_gpus import missing
from agent.faults.sample_changes import Change, after_pause, baseline, changes, merged
from agent.sources.blocking_calls import ProbeHung, ProbeThread
from agent.sources.gpu_state_file import GpuMemory
from agent.sources.nvml import GpuProcess, Inventory, NodeSample, NvmlUnavailable, Trouble
from schemas.node_events import GpuIdentity, Metric

log = logging.getLogger(__name__)

OPEN_SECONDS_MAX: Final = 10.0
REOPEN_SECONDS: Final = 5.0
REOPEN_TROUBLED_SECONDS: Final = 30.0
"""NVML is started anew this often while a GPU could not be found at all: it may have been reset."""
IDLE_MEMORY_PART_MAX: Final = 0.05
"""Of a GPU's memory the driver alone takes less."""

T = TypeVar("T")


class NvmlSession(Protocol):
    """The part of `Nvml` that is used here."""

    asking: tuple[int, str]
    calls: int

    def open(self) -> Inventory:
        """Find the GPUs."""
        ...

    def sample(self) -> NodeSample:
        """Read them."""
        ...

    def processes(self) -> tuple[GpuProcess, ...]:
        """Name the programs that compute on them."""
        ...

    def close(self) -> None:
        """Let go of them."""
        ...


@dataclass(frozen=True, slots=True)
class Before:
    """What an earlier run of the agent knew, and how long ago."""

    gpus: GpuMemory = field(default_factory=GpuMemory)
    same_boot: bool = False
    pause_seconds: float = 0.0


class GpuWatch:
    """The GPUs of this node, as far as NVML tells."""

    def __init__(
        self,
        nvml: NvmlSession,
        probe: ProbeThread,
        *,
        deadline_seconds: float,
        on_change: Callable[[Change], None],
        before: Before | None = None,
        alone: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        """Ask `nvml` in `probe`'s thread, and tell every change to `on_change`.

        `alone` keeps others from NVML while it is started anew.
        """
        self._alone = alone
        self._nvml = nvml
        self._probe = probe
        self._deadline_seconds = deadline_seconds
        self._on_change = on_change
        before = before or Before()
        self._known = before.gpus
        self._same_boot = before.same_boot
        self._samples = {
            each.uuid: after_pause(
                each, same_boot=before.same_boot, pause_seconds=before.pause_seconds
            )
            for each in before.gpus.counters
        }
        self._troubled: set[tuple[int, str]] = set()
        if before.same_boot:
            self._troubled.update(before.gpus.troubled)
        self._released = False
        self._reopen_at = 0.0
        self._look_again_at = 0.0
        self.inventory: Inventory | None = None
        # Until NVML answers, this boot's GPUs are those that an earlier run saw.
        self.gpus = GpuMap((), self._everybody()) if before.same_boot else GpuMap()
        self.problem = ""
        """Why NVML cannot be asked now; empty where it can."""

    async def open(self, deadline_seconds: float = OPEN_SECONDS_MAX) -> bool:
        """Find the GPUs; False, and a fault, where NVML does not answer."""
        try:
            async with self._alone():
                inventory = await self._ask(self._nvml.open, deadline_seconds)
        except NvmlUnavailable as error:
            self._unavailable(str(error))
            return False
        if inventory is None:
            return False
        self._recovered(-1)
        gone, new = missing(self._known, inventory, same_boot=self._same_boot)
        self._same_boot = True
        self.inventory, self.problem = inventory, ""
        self.gpus = GpuMap(inventory.gpus, gone)
        self._known = GpuMemory(present=inventory.gpus, gone=gone)
        known = {gpu.uuid for gpu in self._everybody()}
        self._samples = {uuid: each for uuid, each in self._samples.items() if uuid in known}
        self._look_again_at = asyncio.get_running_loop().time() + REOPEN_TROUBLED_SECONDS
        for gpu in new:
            self._vanished(gpu)
        self._tell(inventory.troubles)
        return True

    @property
    def busy(self) -> bool:
        """Whether somebody works on a GPU, by the last sample."""
        return any(
            (each.utilization_percent or 0) > 0
            or (each.memory_used_bytes or 0) > IDLE_MEMORY_PART_MAX * (each.memory_total_bytes or 0)
            for each in self._samples.values()
        )

    async def processes(self) -> tuple[GpuProcess, ...]:
        """Name the programs that compute on the GPUs; none where NVML cannot say."""
        try:
            return await self._ask(self._nvml.processes, OPEN_SECONDS_MAX) or ()
        except NvmlUnavailable as error:
            log.warning("what runs on the GPUs is not known: %s", error)
            return ()

    @asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Be off the GPUs: they are reset only where nobody holds them. Then look anew."""
        self._released = True
        try:
            async with self._alone():
                try:
                    await self._ask(self._nvml.close, OPEN_SECONDS_MAX)
                except NvmlUnavailable as error:
                    log.warning("the GPUs are perhaps still held: %s", error)
                self._forget("the GPUs are being reset")
                yield
        finally:
            self._released, self._reopen_at = False, 0.0
        await self.open()

    @property
    def current(self) -> bool:
        """Whether what is known is of this boot."""
        return self._same_boot

    def remember(self) -> GpuMemory:
        """What the next run should know."""
        return GpuMemory(
            present=self._known.present,
            gone=self._known.gone,
            counters=tuple(baseline(each) for each in self._samples.values()),
            troubled=tuple(sorted(each for each in self._troubled if each[0] >= 0)),
        )

    def _everybody(self) -> tuple[GpuIdentity, ...]:
        return self._known.present + self._known.gone

    async def sample(self) -> NodeSample | None:
        """Read every GPU and tell what changed; None where NVML does not answer."""
        if not await self._opened():
            return None
        try:
            sample = await self._ask(self._nvml.sample, self._deadline_seconds)
        except NvmlUnavailable as error:
            self._unavailable(str(error))
            return None
        if sample is None or self.inventory is None:
            return None
        self.problem = ""
        self._recovered(-1)
        self._tell(self.inventory.troubles + sample.troubles)
        now = {each.uuid: each for each in sample.gpus}
        for change in changes(self._samples, now):
            self._on_change(change)
        if sample.troubles:
            now = {uuid: merged(self._samples.get(uuid), each) for uuid, each in now.items()}
        self._samples |= now
        return sample

    async def _opened(self) -> bool:
        """Start NVML where it is not there, or does not show every GPU; False: it is not there."""
        if self._released:
            return False
        if self.inventory is None:
            return await self._reopen()
        now = asyncio.get_running_loop().time()
        if self.inventory.troubles and now >= self._look_again_at:
            return await self.open()
        return True

    async def _reopen(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._reopen_at:
            return False
        self._reopen_at = now + REOPEN_SECONDS
        return await self.open()

    async def _ask(self, call: Callable[[], T], deadline_seconds: float) -> T | None:
        """Make a call of NVML; None, and a fault, where it hangs."""
        try:
            return await self._probe.call(call, deadline_seconds, lambda: self._nvml.calls)
        except ProbeHung as error:
            index, asked = self._nvml.asking
            self.problem = f"NVML hangs ({asked}): {error}"
            key = (index, "probe_hung")
            if not any(kind == "probe_hung" for _, kind in self._troubled):
                self._troubled.add(key)
                self._on_change(Change("probe_hung", index, self.problem, subcode=asked))
            return None

    def _unavailable(self, problem: str) -> None:
        if self._released:
            # Our own doing; it is opened anew in a moment.
            return
        self._forget(problem)
        if (-1, "probe_failed") not in self._troubled:
            self._troubled.add((-1, "probe_failed"))
            self._on_change(Change("probe_failed", -1, problem))

    def _forget(self, problem: str) -> None:
        """NVML is not to be asked for now."""
        self.inventory, self.problem = None, problem
        # A driver that starts anew brings its NVLinks up one by one.
        self._samples = {
            uuid: msgspec.structs.replace(each, nvlinks_up=None)
            for uuid, each in self._samples.items()
        }

    def _tell(self, troubles: tuple[Trouble, ...]) -> None:
        """Tell troubles that are new, and forget those that are over."""
        now: dict[tuple[int, str], Trouble] = {(each.index, each.kind): each for each in troubles}
        for key, trouble in now.items():
            if key in self._troubled:
                continue
            self._troubled.add(key)
            metrics: dict[str, Metric] = {"nvml_code": trouble.code}
            self._on_change(Change(trouble.kind, trouble.index, trouble.text, metrics=metrics))
        for over in [each for each in self._troubled if each[0] >= 0 and each not in now]:
            log.info("GPU %s answers again (%s)", *over)
            self._troubled.discard(over)

    def _recovered(self, index: int) -> None:
        for key in [e for e in self._troubled if e[0] == index or e[1] == "probe_hung"]:
            self._troubled.discard(key)

    def _vanished(self, gpu: GpuIdentity) -> None:
        self._on_change(
            Change(
                "gpu_lost",
                gpu.index,
                f"GPU {gpu.index} ({gpu.uuid}) is gone: NVML sees it no more",
                subcode="vanished",
                uuid=gpu.uuid,
            )
        )
