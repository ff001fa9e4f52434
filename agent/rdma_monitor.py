"""Watches the RDMA ports of this node: at boot, and at an interval from then on.

What the host has had when its boot checks passed is remembered over restarts and boots.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from agent.conditions.declared import RDMA_SECONDS
from agent.conditions.engine import Observed
from agent.conditions.rdma_reader import (
    Ports,
    RdmaNeeds,
    RdmaPort,
    after_boot,
    kept,
    rdma_check,
    read_rdma,
)
from agent.settings import AgentConfig
from agent.sources.blocking_calls import ProbeHung, ProbeThread
from agent.sources.host_metrics import rdma_ports
from schemas.node_events import CheckResult
from services.primitives.clock import Clock

READ_SECONDS_MAX: Final = 5.0
"""How long reading the state of all RDMA devices may take."""


def needs_of(config: AgentConfig) -> RdmaNeeds:
    """Return what the settings say of this host's ports."""
    return RdmaNeeds(
        devices=config.rdma_devices,
        link_layer=config.rdma_link_layer,
        gbit_per_second=config.rdma_gbit_per_second,
    )


class RdmaMonitor:
    """Reads the ports in a thread of its own, because a driver may hang."""

    def __init__(
        self,
        sys: Path,
        needs: RdmaNeeds,
        clock: Clock,
        observe: Callable[[Observed], None],
        before: Ports,
        *,
        same_boot: bool,
    ) -> None:
        """Read below `sys`; `before`: the ports that an earlier run has remembered."""
        self._read = partial(rdma_ports, sys)
        self._needs = needs
        self._clock = clock
        self._observe = observe
        self._same_boot = same_boot
        self._probe = ProbeThread("rdma")
        self._last: tuple[RdmaPort, ...] = ()
        self._next_at = 0.0
        self.known = dict(before)
        """The ports that this host has had, by name."""

    @property
    def _watched(self) -> bool:
        return bool(self._needs.devices or self.known)

    async def check(self) -> tuple[CheckResult, ...]:
        """Compare the ports at boot; nothing where none is expected."""
        ports = await self._ports()
        if ports is not None:
            self._last = ports
            if not self._same_boot:
                self.known = dict(after_boot(self.known, ports))
        return (rdma_check(self._needs, self.known, ports),) if self._watched else ()

    def admit(self) -> None:
        """Remember what is up now: the boot checks have passed."""
        self._same_boot = True
        self.known = kept(self.known, self._last)

    async def look(self) -> None:
        """Observe the ports, when it is time."""
        now = self._clock.monotonic()
        if not self._watched or now < self._next_at:
            return
        self._next_at = now + RDMA_SECONDS
        self._observe(read_rdma(self._needs, self.known, await self._ports()))

    async def _ports(self) -> tuple[RdmaPort, ...] | None:
        """Return the ports; None: the driver does not answer."""
        try:
            return await self._probe.call(self._read, READ_SECONDS_MAX)
        except ProbeHung:
            return None
