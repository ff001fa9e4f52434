"""The notifier for a fleet without a workload system: it logs its orders and confirms nothing."""

import logging

from schemas.settings import Setting
from services.primitives.clock import Clock

log = logging.getLogger(__name__)


class NoopNotifier:
    """Logs its orders; a drain ends at once, without confirmation."""

    class Options(Setting, frozen=True, kw_only=True):
        """`notifier: {type: noop, accept_no_drain: true}`."""

        accept_no_drain: bool = False
        """Nodes may be terminated with work on them: `unconfirmed_drain` does not warn."""

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Accept the arguments of every plugin."""
        del options, clock

    @property
    def name(self) -> str:
        """The name in logs."""
        return "noop"

    @property
    def confirms_drains(self) -> bool:
        """There is no workload system to ask."""
        return False

    async def cordon(self, node: str, reason: str, *, idempotency_key: str) -> None:
        """Log the cordon."""
        log.info("cordon", extra={"node": node, "reason": reason, "key": idempotency_key})

    async def uncordon(self, node: str, *, idempotency_key: str) -> None:
        """Log the uncordon."""
        log.info("uncordon", extra={"node": node, "key": idempotency_key})

    async def drain(self, node: str, reason: str, *, idempotency_key: str) -> None:
        """Log the drain."""
        log.info("drain", extra={"node": node, "reason": reason, "key": idempotency_key})

    async def is_drained(self, node: str) -> bool:  # noqa: ARG002
        """Unknown, so never reported."""
        return False

    async def close(self) -> None:
        """There are no connections."""
