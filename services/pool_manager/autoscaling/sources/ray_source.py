"""Reads what a Ray cluster has no place for."""

import math
from typing import Final

import msgspec

from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from services.pool_manager.autoscaling.metrics_sources import (
    SHAPES_MAX,
    Load,
    SourceError,
    WaitingJobs,
)
from services.primitives.clock import SystemClock
from services.runtime.http_caller import TransientHttpError
from services.saga.participant import StepFailure
from services.workload_systems.ray_answers import GroupDemand, RayDemand
from services.workload_systems.ray_client import RayClient, RayUnavailableError

SPREAD: Final = frozenset({"SPREAD", "STRICT_SPREAD"})
HEAD: Final = "node:InternalHead"
"""Resource that only the head has."""


class RaySource:
    """Asks Ray's dashboard."""

    class Options(Setting, frozen=True, kw_only=True):
        """Options of `ray` in the configuration name the dashboard and the resource that counts."""

        dashboard: SecretText
        """URL of the dashboard, as `http://ray-head:8265`."""
        headers: dict[str, SecretText] = msgspec.field(default_factory=dict)
        """HTTP headers of every request, such as Authorization."""
        resource: str = "GPU"
        """Tasks, actors and groups that request none of it do not count."""
        timeout: Duration = Duration(10)
        """For one request."""

    def __init__(self, *, options: Options) -> None:
        """Connect at the first question."""
        self._resource = options.resource
        self._ray = RayClient(
            options.dashboard, options.headers, float(options.timeout), SystemClock()
        )

    async def load(self, pool: str) -> Load:
        """Ask once; the whole cluster is `pool`."""
        try:
            return demand_load(await self._ray.demand(), self._resource)
        except StepFailure as failure:
            raise SourceError(f"{failure.reason}; {failure.remedy}") from failure
        except (RayUnavailableError, TransientHttpError) as error:
            raise SourceError(f"metrics of pool {pool}: {error}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._ray.close()


def demand_load(demand: RayDemand, resource: str) -> Load:
    """Return what waits and what is busy. Pure.

    A placement group that spreads needs a node for each bundle, all at once. The bundles of one
    that packs count by themselves, because nodes may share them.
    """
    waiting = [_shape(needs.get(resource, 0), count) for needs, count in demand.resource_demand]
    for group, count in demand.pg_demand:
        waiting += _group(group, count, resource)
    found = [each for each in waiting if each is not None]
    busy = [
        node
        for node, uses in demand.usage_by_node.items()
        if HEAD not in uses and uses.get(resource, (0, 0))[0] > 0
    ]
    without = sum(count for needs, count in demand.resource_demand if resource not in needs)
    return Load(
        pending_jobs=sum(each.count for each in found),
        waiting=tuple(found[:SHAPES_MAX]),
        busy_nodes=len(busy),
        not_for_nodes=without,
    )


def _group(group: GroupDemand, count: int, resource: str) -> list[WaitingJobs | None]:
    needs = [(bundle.get(resource, 0), number) for bundle, number in group.bundles]
    needs = [(amount, number) for amount, number in needs if amount]
    if group.strategy == "STRICT_PACK":
        return [_shape(sum(amount * number for amount, number in needs), count)]
    if group.strategy in SPREAD:
        largest = max((amount for amount, _ in needs), default=0)
        return [_shape(largest, count, nodes=sum(number for _, number in needs))]
    return [_shape(amount, number * count) for amount, number in needs]


def _shape(amount: float, count: int, nodes: int = 1) -> WaitingJobs | None:
    """None: it needs none of the resource."""
    if amount <= 0 or count <= 0:
        return None
    return WaitingJobs(nodes=nodes, gpus=math.ceil(amount), count=count)
