"""What a notifier is: the way to whatever places work on the nodes (Slurm, Kubernetes, Ray …).

A notifier performs and asks; it never decides which node, when or why. Sagas tell it, through
`service`, and go on by what it answers. Plugins of both kinds here are classes with an inner
msgspec struct `Options`, constructed with `options=` and `clock=`.
"""

from typing import Protocol, runtime_checkable

from services.notifier.alerts.alert_rules import Alert
from services.saga.participant import StepFailure


@runtime_checkable
class Notifier(Protocol):
    """A workload system.

    Every call may come more than once: a service that was killed after the call and before it could
    note the result calls again, with the same `idempotency_key` (`<saga>/<step>`). So each must be
    idempotent: to cordon what is cordoned, to uncordon what is not, to drain what drains or is
    empty, changes nothing and succeeds. A node may be dead or gone by then; calls are about what
    the workload system believes, and must not need the node itself.

    A call returns when the workload system has taken the order, not when the work has gone. It
    raises StepFailure where trying again is of no use; whatever else it raises is tried again until
    the step's deadline, at which the running call is cancelled.
    """

    @property
    def name(self) -> str:
        """What logs call it."""
        ...

    async def cordon(self, node: str, reason: str, *, idempotency_key: str) -> None:
        """Place nothing new on the node; what runs there goes on."""
        ...

    async def uncordon(self, node: str, *, idempotency_key: str) -> None:
        """The node may be used again."""
        ...

    async def drain(self, node: str, reason: str, *, idempotency_key: str) -> None:
        """Begin to move the work off the node."""
        ...

    async def is_drained(self, node: str) -> bool:
        """Whether no work is left on the node, so that it may be terminated."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


@runtime_checkable
class AlertChannel(Protocol):
    """A way to reach people.

    An alert may be sent more than once, after a crash in between; `alert.key` is the same then, so
    a channel that can (an incident system) uses it to fold the two into one.
    """

    @property
    def name(self) -> str:
        """What logs call it."""
        ...

    async def send(self, alert: Alert) -> None:
        """Deliver one alert; whatever is raised has it sent again later."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


__all__ = ["AlertChannel", "Notifier", "StepFailure"]
