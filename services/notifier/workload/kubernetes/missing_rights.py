"""Asks which rights the notifier's account lacks, and decides what comes of orders without one."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from services.notifier.workload.kubernetes.kubernetes_rights import (
    REVIEWS,
    Right,
    access_review,
    grant_of,
)
from services.notifier.workload.workload_notifier import (
    StepFailure,
    WorkloadCheck,
    WorkloadOrder,
)
from services.primitives.clock import Clock
from services.workload_systems.kubernetes_client import KubernetesClient, MissingRightError

TRIED_SECONDS: Final = 60.0
"""An API server that has just started has loaded no roles, and refuses everything for moments."""
REFUSED_MAX: Final = 10_000
"""Orders that are remembered as refused; the oldest are forgotten first."""


class RefusedOrders:
    """Has orders that lack a right repeated for a time, before they count as refused."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    @contextmanager
    def needed(self, order: WorkloadOrder, grant: str, *, always: bool = False) -> Iterator[None]:
        """Raise PermissionError where the order is to be repeated, StepFailure after that.

        `always`: it undoes another order, and is repeated until the right is there.
        """
        try:
            yield
        except MissingRightError as error:
            now = self._clock.monotonic()
            since = self._since.setdefault(order.key, now)
            if len(self._since) > REFUSED_MAX:
                del self._since[next(iter(self._since))]
            if always or now - since < TRIED_SECONDS:
                raise PermissionError(f"Kubernetes refuses: {error}; {grant}") from error
            raise StepFailure(f"Kubernetes refuses: {error}", "INVALID", grant) from error
        else:
            self._since.pop(order.key, None)


class _Verdict(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _Verdict = _Verdict()


async def missing_rights(
    client: KubernetesClient, needed: Sequence[Right]
) -> Sequence[WorkloadCheck]:
    """A failed check for each right that the account lacks."""

    async def has(right: Right) -> bool:
        answer = await client.call("POST", REVIEWS, body=access_review(right))
        return msgspec.json.decode(answer, type=_Review).status.allowed

    granted = await asyncio.gather(*map(has, needed))
    return [
        WorkloadCheck(
            what=f"right to {each.verb} {each.resource}", passed=False, remedy=grant_of(each)
        )
        for each, given in zip(needed, granted, strict=True)
        if not given
    ]
