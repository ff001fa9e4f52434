"""Samples the GPUs through NVML; reports counters that rose, and the conditions that are seen.

The loop waits for NVML at most for its deadline: that a call hangs or fails is a condition.
Telemetry is not buffered: only the latest sample matters.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol, TypeVar

import msgspec

from agent.conditions.engine import Observed
from agent.conditions.gpu_reader import NO_MODULE, NvmlOutage, NvmlView, read_gpus
from agent.faults.fault_builder import GpuMap
from agent.faults.sample_changes import (
    SampleChange,
    after_pause,
    baseline,
    changes,
    fill_missing,
    missing,
)
from agent.observations import (
    NEEDS_UNKNOWN,
    Best,
    GpuInventory,
    GpuNeeds,
    GpuState,
    NodeSample,
    dated_use,
)
from agent.sources.blocking_calls import ProbeHung, ProbeThread
from agent.sources.nvml import GpuProcess, NvmlUnavailable
from schemas.node_events import GpuIdentity
from schemas.node_records import GpuUse

log = logging.getLogger(__name__)

OPEN_SECONDS_MAX: Final = 10.0
REOPEN_SECONDS: Final = 5.0
REOPEN_FAILING_SECONDS: Final = 30.0
"""Interval of restarting NVML while a GPU cannot be identified: it may have been reset."""
LINKS_SECONDS: Final = 30.0
"""How long NVLinks may take to come up after a driver was restarted."""
IDLE_MEMORY_PART_MAX: Final = 0.05
"""Share of a GPU's memory; the driver alone uses less."""

T = TypeVar("T")


class NvmlSession(Protocol):
    """The part of `Nvml` that is used here."""

    asking: tuple[int, str]
    calls: int

    def open(self) -> GpuInventory:
        """Find the GPUs."""

    def sample(self) -> NodeSample:
        """Read every GPU once."""

    def processes(self) -> tuple[GpuProcess, ...]:
        """Name the programs that compute on them."""

    def close(self) -> None:
        """Let go of them."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """Holds the state of an earlier run of the agent, and its age."""

    gpus: GpuState = field(default_factory=GpuState)
    same_boot: bool = False
    pause_seconds: float = 0.0


class GpuMonitor:
    """Watches the GPUs of this node through NVML."""

    def __init__(
        self,
        nvml: NvmlSession,
        probe: ProbeThread,
        *,
        deadline_seconds: float,
        on_change: Callable[[SampleChange], None],
        observe: Callable[[Observed], None] = lambda _: None,
        needs: GpuNeeds = NEEDS_UNKNOWN,
        before: EarlierRun | None = None,
        alone: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        """Call `nvml` in `probe`'s thread; pass changes to `on_change`, conditions to `observe`.

        `needs`: of the host's type; `alone` keeps others from NVML while it restarts.
        """
        self._alone = alone
        self._nvml = nvml
        self._probe = probe
        self._deadline_seconds = deadline_seconds
        self._on_change = on_change
        self._observe = observe
        self.needs = needs
        before = before or EarlierRun()
        self._known = before.gpus
        self.current = before.same_boot
        self._samples = {
            each.uuid: after_pause(
                each, same_boot=before.same_boot, pause_seconds=before.pause_seconds
            )
            for each in before.gpus.counters
        }
        self.best = {
            uuid: each if before.same_boot else msgspec.structs.replace(each, nvlinks=0)
            for uuid, each in before.gpus.best.items()
        }
        """UUID -> the most that each GPU has had."""
        self._opened = False
        self.links_awaited = False
        """NVLinks and fabric are still coming up after the boot."""
        self.driver_awaited = False
        """The driver still has its time to be loaded after the boot."""
        self._links_due_at = 0.0
        self._released = False
        self._use: GpuUse | None = None
        self._reopen_at = 0.0
        self._look_again_at = 0.0
        self.inventory: GpuInventory | None = None
        # Until NVML answers, this boot's GPUs are those of the earlier run.
        self.gpus = GpuMap((), self._all_known()) if before.same_boot else GpuMap()
        self.problem = ""
        """Why NVML is unavailable; empty: it is available."""
        self.outage: NvmlOutage | None = None

    async def open(self, deadline_seconds: float = OPEN_SECONDS_MAX) -> bool:
        """Find the GPUs; False where NVML does not answer."""
        try:
            async with self._alone():
                inventory = await self._ask(self._nvml.open, deadline_seconds)
        except NvmlUnavailable as error:
            self._unavailable(error)
            return False
        if inventory is None:
            return False
        gone = missing(self._known, inventory, same_boot=self.current)
        now = asyncio.get_running_loop().time()
        if self._opened:
            # A restarted driver brings its NVLinks up one by one.
            self._links_due_at = now + LINKS_SECONDS
        self.current = self._opened = True
        self.inventory, self.problem, self.outage = inventory, "", None
        self.gpus = GpuMap(inventory.gpus, gone)
        self._known = GpuState(present=inventory.gpus, gone=gone)
        known = {gpu.uuid for gpu in self._all_known()}
        self._samples = {uuid: each for uuid, each in self._samples.items() if uuid in known}
        self.best = {uuid: each for uuid, each in self.best.items() if uuid in known}
        self._look_again_at = now + REOPEN_FAILING_SECONDS
        return True

    def use(self, now: datetime) -> GpuUse | None:
        """Return whether a GPU is in use and since when; None: NVML does not say."""
        known = self.inventory is not None and bool(self._samples)
        busy = self.busy if known else None
        if self.outage is not None and self.outage.code == NO_MODULE:
            busy = False  # nothing runs on a GPU without the module
        self._use = dated_use(self._use, busy, now)
        return self._use

    @property
    def busy(self) -> bool:
        """Return whether a GPU is in use, by the last sample."""
        return any(
            (each.utilization_percent or 0) > 0
            or (each.memory_used_bytes or 0) > IDLE_MEMORY_PART_MAX * (each.memory_total_bytes or 0)
            for each in self._samples.values()
        )

    async def processes(self) -> tuple[GpuProcess, ...]:
        """Processes that use the GPUs; none where NVML is unavailable."""
        try:
            return await self._ask(self._nvml.processes, OPEN_SECONDS_MAX) or ()
        except NvmlUnavailable as error:
            log.warning("what runs on the GPUs is not known: %s", error)
            return ()

    @asynccontextmanager
    async def release(self) -> AsyncIterator[None]:
        """Close NVML during a reset, which needs idle GPUs; then open it again."""
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

    def remember(self) -> GpuState:
        """State for the next run."""
        return GpuState(
            present=self._known.present,
            gone=self._known.gone,
            counters=tuple(baseline(each) for each in self._samples.values()),
            best=self.best,
        )

    def _all_known(self) -> tuple[GpuIdentity, ...]:
        return self._known.present + self._known.gone

    async def sample(self) -> NodeSample | None:
        """Read every GPU, report changes and conditions; None where NVML does not answer."""
        sample = await self._sample()
        if not self._released:
            now = asyncio.get_running_loop().time()
            view = NvmlView(
                outage=self.outage,
                opened=self._opened,
                inventory=self.inventory,
                sample=sample,
                gone=self.gpus.gone,
                needs=self.needs,
                best=self.best,
                driver_awaited=self.driver_awaited,
                links_due=not self.links_awaited and now >= self._links_due_at,
            )
            self._observe(read_gpus(view))
        return sample

    async def _sample(self) -> NodeSample | None:
        if not await self._ensure_open():
            return None
        try:
            sample = await self._ask(self._nvml.sample, self._deadline_seconds)
        except NvmlUnavailable as error:
            self._unavailable(error)
            return None
        if sample is None or self.inventory is None:
            return None
        self.problem, self.outage = "", None
        now = {each.uuid: each for each in sample.gpus}
        for change in changes(self._samples, now):
            self._on_change(change)
        for uuid, each in now.items():
            self.best[uuid] = self.best.get(uuid, Best()).with_sample(each)
        if sample.failures:
            now = {uuid: fill_missing(self._samples.get(uuid), each) for uuid, each in now.items()}
        self._samples |= now
        return sample

    async def _ensure_open(self) -> bool:
        """Open NVML if it is closed or does not show every GPU; False: it is unavailable."""
        if self._released:
            return False
        if self.inventory is None:
            return await self._reopen()
        now = asyncio.get_running_loop().time()
        if self.inventory.failures and now >= self._look_again_at:
            return await self.open()
        return True

    async def _reopen(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._reopen_at:
            return False
        self._reopen_at = now + REOPEN_SECONDS
        return await self.open()

    async def _ask(self, call: Callable[[], T], deadline_seconds: float) -> T | None:
        """Call NVML; None where it hangs."""
        try:
            return await self._probe.call(call, deadline_seconds, lambda: self._nvml.calls)
        except ProbeHung as error:
            index, reading = self._nvml.asking
            self.problem = f"NVML hangs ({reading}): {error}"
            if self.outage is None or not self.outage.hangs:
                self.outage = NvmlOutage(self.problem, hangs=True, index=index, reading=reading)
            return None

    def _unavailable(self, error: NvmlUnavailable) -> None:
        if self._released:
            # The agent closed it and is about to open it again.
            return
        self._forget(str(error))
        self.outage = NvmlOutage(str(error), code=error.code)

    def _forget(self, problem: str) -> None:
        """Mark NVML as unavailable."""
        self.inventory, self.problem = None, problem
