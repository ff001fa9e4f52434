"""Bounds of a schedule that lie outside those of its pool, which limit them. Pure."""

from collections.abc import Iterator
from typing import Any

from schemas.settings import Settings


def schedule_warnings(settings: Settings) -> Iterator[str]:
    """One sentence for each size that the pool will not have."""
    for name, spec in settings.pools.items():
        for key, size in _sizes(spec.autoscaling):
            if not spec.min_nodes <= size <= spec.max_nodes:
                where = f"min_nodes {spec.min_nodes} to max_nodes {spec.max_nodes}"
                yield (
                    f"pool {name}: its schedule has {key} {size}, and the pool stays within "
                    f"{where}; change one of them"
                )


def _sizes(raw: Any) -> Iterator[tuple[str, int]]:
    """Each size of a schedule, at any depth; what is of another kind is reported elsewhere."""
    if not isinstance(raw, dict):
        return
    for period in _dicts(raw.get("schedule")):
        for key in ("nodes", "min_nodes", "max_nodes"):
            if type(period.get(key)) is int:
                yield key, period[key]
        yield from _sizes(period.get("autoscaler"))
    yield from _sizes(raw.get("fallback"))
    for each in _dicts(raw.get("autoscalers")):
        yield from _sizes(each)


def _dicts(listed: Any) -> list[dict[str, Any]]:
    return [each for each in listed or () if isinstance(each, dict)]
