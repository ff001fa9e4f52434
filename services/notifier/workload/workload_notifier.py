"""The interface of notifiers: plugins that cordon and drain in a workload system.

A notifier carries out the steps of sagas; it never decides which node, when or why. A plugin is a
class with an inner msgspec struct `Options`, constructed with `options=` and `clock=`.
"""

from typing import Protocol, runtime_checkable

from services.saga.participant import StepFailure


@runtime_checkable
class Notifier(Protocol):
    """A workload system.

    Every call must be idempotent: a replica that is killed before it stores the result repeats the
    call with the same `idempotency_key` (`<saga>/<step>`). Cordoning a cordoned node, uncordoning
    one that is not cordoned, and draining a draining or empty node succeed and change nothing. The
    node may be dead or terminated by then, so a call must not need the node itself.

    A call returns when the workload system has accepted the order, not when the work has left. It
    raises StepFailure if a retry cannot succeed; any other exception is retried until the step's
    deadline, which cancels the running call.
    """

    @property
    def name(self) -> str:
        """The name in logs."""
        ...

    @property
    def confirms_drains(self) -> bool:
        """Whether `is_drained` reports what the workload system said.

        If not, it is never called: a drain ends when it is ordered, and its event says that
        nothing confirmed it.
        """
        ...

    async def cordon(self, node: str, reason: str, *, idempotency_key: str) -> None:
        """Stop placing new work on the node; running work continues."""
        ...

    async def uncordon(self, node: str, *, idempotency_key: str) -> None:
        """Allow new work on the node again."""
        ...

    async def drain(self, node: str, reason: str, *, idempotency_key: str) -> None:
        """Start to move the work off the node."""
        ...

    async def is_drained(self, node: str) -> bool:
        """Whether the workload system says that no work is left, so that it may be terminated."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


__all__ = ["Notifier", "StepFailure"]
