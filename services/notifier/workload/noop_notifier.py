"""The notifier for a fleet without a workload system: it logs its orders and confirms nothing."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from schemas.settings import Setting
from services.notifier.workload.workload_notifier import (
    NodeReference,
    WorkloadAnswer,
    WorkloadOrder,
)
from services.primitives.clock import Clock

log = logging.getLogger(__name__)


class NoopNotifier:
    """Logs its orders; a drain ends at once, without confirmation."""

    name = "noop"
    confirms_drains = False
    """There is no workload system to ask."""
    batches = True
    """Nothing is asked."""
    poll_seconds = 1.0
    """Never used: nothing is asked."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `notifier: {type: noop, accept_no_drain: true}`."""

        accept_no_drain: bool = False
        """Nodes may be terminated with work on them: `unconfirmed_drain` does not warn."""

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Accept the arguments of every plugin."""
        del options, clock

    async def cordon(self, order: WorkloadOrder) -> None:
        """Log the cordon."""
        self._log("cordon", order)

    async def uncordon(self, order: WorkloadOrder) -> None:
        """Log the uncordon."""
        self._log("uncordon", order)

    async def drain(self, order: WorkloadOrder) -> None:
        """Log the drain."""
        self._log("drain", order)

    async def evict(self, order: WorkloadOrder) -> None:
        """Log the eviction."""
        self._log("evict", order)

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:  # noqa: ARG002
        """Unknown, so never reported."""
        return {}

    async def wait_for_change(self) -> None:
        """Nothing reports one."""
        await asyncio.Event().wait()

    def _log(self, event: str, order: WorkloadOrder) -> None:
        about = {"node": order.node.node, "reason": order.reason, "key": order.key}
        log.info("%s", event, extra=about)

    async def close(self) -> None:
        """There are no connections."""
