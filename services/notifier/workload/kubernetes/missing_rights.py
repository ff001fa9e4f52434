"""Asks Kubernetes which rights the notifier's account lacks."""

import asyncio
from collections.abc import Sequence

import msgspec

from services.notifier.workload.kubernetes.kubernetes_rights import (
    REVIEWS,
    Right,
    access_review,
    grant_of,
)
from services.notifier.workload.workload_notifier import WorkloadCheck
from services.workload_systems.kubernetes_client import KubernetesClient


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
