"""The notifier where no workload system is told: nothing runs that would have to leave."""

import logging

from schemas.settings import Setting
from services.primitives.clock import Clock

log = logging.getLogger(__name__)


class NoopNotifier:
    """Logs what it is told; a node is drained at once."""

    class Options(Setting, frozen=True, kw_only=True):
        """None."""

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Need nothing."""
        del options, clock

    @property
    def name(self) -> str:
        """What logs call it."""
        return "noop"

    async def cordon(self, node: str, reason: str, *, idempotency_key: str) -> None:
        """Log it."""
        log.info("cordon", extra={"node": node, "reason": reason, "key": idempotency_key})

    async def uncordon(self, node: str, *, idempotency_key: str) -> None:
        """Log it."""
        log.info("uncordon", extra={"node": node, "key": idempotency_key})

    async def drain(self, node: str, reason: str, *, idempotency_key: str) -> None:
        """Log it."""
        log.info("drain", extra={"node": node, "reason": reason, "key": idempotency_key})

    async def is_drained(self, node: str) -> bool:  # noqa: ARG002
        """Nothing is known to run anywhere."""
        return True

    async def close(self) -> None:
        """Nothing is held."""
