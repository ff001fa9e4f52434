"""Checks a pool's `workload_names`, and names what to write instead. Pure."""

from collections.abc import Iterable
from typing import Final

from schemas.names import TOKEN
from schemas.operator_requests import WORKLOAD_NAMES_MAX
from schemas.settings import PoolSpec
from services.primitives.host_list import expand_hosts, some_of
from services.settings.provider_choices import Problem

KEY: Final = "workload_names"


def workload_names_problem(spec: PoolSpec, pools: Iterable[PoolSpec]) -> Problem | None:
    """The key that is wrong and why; None where all is right. `pools`: those of the fleet."""
    if not spec.workload_names:
        return None
    names = _names(spec)
    if not 0 < len(names) <= WORKLOAD_NAMES_MAX:
        return (KEY,), (
            f"{spec.workload_names[:80]!r} is no list of 1 to {WORKLOAD_NAMES_MAX} names; write "
            "one like training-[001-064]"
        )
    if strange := [each for each in names if not TOKEN.match(each)]:
        return (KEY,), f"{some_of(strange)}: use a-z, 0-9 and '-', which every provider takes"
    for key in ("min_nodes", "spares", "autoscaling"):
        if getattr(spec, key):
            return (key,), f"excludes `{KEY}`, by which alone the pool is sized; remove one of them"
    if spec.admission.diagnostic:
        return ("admission", "diagnostic"), (
            f"excludes `{KEY}`: Slurm starts the waiting job as soon as slurmd has registered; run "
            "the diagnostic before slurmd starts, in setup_commands or the image"
        )
    others = {name for each in pools if each is not spec for name in _names(each)}
    if shared := sorted(others & set(names)):
        return (KEY,), f"{some_of(shared)}: another pool has the same; each name has one pool"
    return None


def _names(spec: PoolSpec) -> list[str]:
    try:
        return list(expand_hosts(spec.workload_names))
    except ValueError:
        return []
