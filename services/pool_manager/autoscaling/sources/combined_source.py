"""Combines several sources as one: utilization from one, the queue from another."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from schemas.settings import Setting
from services.pool_manager.autoscaling.metrics_sources import Load, MetricsSource


class CombinedSource:
    """Each figure is from the first of its sources that knows it."""

    class Options(Setting, frozen=True, kw_only=True):
        """Options of `combined` in the configuration list the sources."""

        sources: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=2, max_length=10)]
        """Each with its `type` and options."""

    def __init__(self, parts: Sequence[MetricsSource]) -> None:
        """Ask `parts`, the sources that the options name."""
        self._parts = tuple(parts)

    async def load(self, pool: str) -> Load:
        """Ask all at once; a source without an answer leaves the pool without one."""
        loads = await asyncio.gather(*(each.load(pool) for each in self._parts))
        merged: dict[str, Any] = {}
        for load in loads:
            known = msgspec.structs.asdict(load)
            merged |= {
                name: value
                for name, value in known.items()
                if value is not None and name not in merged
            }
        sums = {
            "not_for_nodes": sum(each.not_for_nodes for each in loads),
            "not_for_pool": sum(each.not_for_pool for each in loads),
        }
        return Load(**merged | sums)

    async def close(self) -> None:
        """Close all of them."""
        for each in self._parts:
            await each.close()
