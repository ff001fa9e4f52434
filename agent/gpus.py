"""Watches the GPUs through NVML: samples, and from one to the next what turned worse.

The loop never waits for NVML longer than its deadline: a call that hangs is a fault, and so is one
that fails. Each is told once, when it begins. Telemetry is sent as it is and never kept: only the
latest sample is worth anything.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from agent.changes import Change, changes
from agent.faults import GpuMap
from agent.nvml import Inventory, NodeSample, NvmlUnavailable, Trouble
from agent.probe import ProbeHung, ProbeThread
from schemas.node_events import GpuIdentity, GpuSample, Metric

log = logging.getLogger(__name__)

OPEN_SECONDS_MAX: Final = 10.0
REOPEN_SECONDS: Final = 5.0

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


class GpuWatch:
    """The GPUs of this node, as far as NVML tells."""

    def __init__(
        self,
        nvml: NvmlSession,
        probe: ProbeThread,
        *,
        deadline_seconds: float,
        on_change: Callable[[Change], None],
    ) -> None:
        """Ask `nvml` in `probe`'s thread, and tell every change to `on_change`."""
        self._nvml = nvml
        self._probe = probe
        self._deadline_seconds = deadline_seconds
        self._on_change = on_change
        self._samples: dict[int, GpuSample] = {}
        self._troubled: set[tuple[int, str]] = set()
        self._reopen_at = 0.0
        self.inventory: Inventory | None = None
        self.gpus = GpuMap()
        self.problem = ""
        """Why NVML cannot be asked now; empty where it can."""

    async def open(self, deadline_seconds: float = OPEN_SECONDS_MAX) -> bool:
        """Find the GPUs; False, and a fault, where NVML does not answer."""
        try:
            inventory = await self._ask(self._nvml.open, deadline_seconds)
        except NvmlUnavailable as error:
            self._unavailable(str(error))
            return False
        if inventory is None:
            return False
        known = {gpu.uuid for gpu in inventory.gpus}
        for gpu in self.gpus.gpus:
            if gpu.uuid not in known:
                self._vanished(gpu)
        self._recovered(-1)
        self.inventory, self.problem = inventory, ""
        self.gpus = GpuMap(inventory.gpus)
        self._samples = {}
        self._tell(inventory.troubles)
        return True

    async def sample(self) -> NodeSample | None:
        """Read every GPU and tell what changed; None where NVML does not answer."""
        if self.inventory is None and not await self._reopen():
            return None
        try:
            sample = await self._ask(self._nvml.sample, self._deadline_seconds)
        except NvmlUnavailable as error:
            self._unavailable(str(error))
            return None
        if sample is None:
            return None
        self.problem = ""
        self._recovered(-1)
        self._tell(sample.troubles)
        now = {each.index: each for each in sample.gpus}
        for change in changes(self._samples, now):
            self._on_change(change)
        self._samples |= now
        return sample

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
        self.inventory, self.problem = None, problem
        if (-1, "probe_failed") not in self._troubled:
            self._troubled.add((-1, "probe_failed"))
            self._on_change(Change("probe_failed", -1, problem))

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
            )
        )
