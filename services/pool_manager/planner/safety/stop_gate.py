"""Decides what a stop holds: a saga that would begin by itself, or a step of an open one. Pure.

Operators' own orders pass, and so does what only gives a node back to work.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from schemas.enums import SagaKind
from schemas.pool_records import OpenSaga
from schemas.saga_params import SagaTraits
from schemas.settings import PoolSpec
from schemas.stops import FLEET, Stop, StopState, scope_of
from services.saga.definition import Step
from services.saga.definitions import DEFINITIONS

CALLING: Final = frozenset({"provision", "terminate", "reboot"})
"""Steps that call a provider."""


def stop_of(stops: StopState, pool: str, now: datetime) -> Stop | None:
    """Return the stop for which nothing automatic begins in a pool."""
    return stops.find((FLEET, scope_of(pool, "")), now)


def any_of(stops: StopState, pool: str, spec: PoolSpec, now: datetime) -> Stop | None:
    """Return the stop that holds something of a pool: all of it, or what calls its providers."""
    return of_call(stops, pool, _names(spec), now)


def of_call(stops: StopState, pool: str, providers: Iterable[str], now: datetime) -> Stop | None:
    """Return the stop for which one of these providers is not called for a pool."""
    return stops.find((FLEET, scope_of(pool, ""), *_scopes(providers)), now)


def holds(
    stops: StopState, pool: str, spec: PoolSpec, kind: SagaKind, saga: SagaTraits, now: datetime
) -> Stop | None:
    """Return the stop for which a saga of the pool-manager's own does not begin."""
    if gives_back(kind, saga):
        return None
    found = stop_of(stops, pool, now)
    return found or (stops.find(_scopes(_names(spec)), now) if may_call(kind) else None)


def holds_step(
    stops: StopState, pool: str, spec: PoolSpec, opened: OpenSaga, step: Step, now: datetime
) -> Stop | None:
    """Return the stop for which an open saga waits before a step."""
    if opened.cause or gives_back(opened.kind, opened):
        return None
    own = (FLEET, scope_of(pool, "")) if goes_far(step) else ()
    called = _scopes(_names(spec)) if step.name in CALLING else ()
    return stops.find((*own, *called), now, running=True) if own or called else None


def goes_far(step: Step) -> bool:
    """Return whether a step cannot be taken back; one that waits for a node changes nothing."""
    if step.pivot or step.irrevocable:
        return True
    return not step.undo and step.waits is None


def gives_back(kind: SagaKind, saga: SagaTraits) -> bool:
    """Return whether a saga only lets work onto a node, or onto GPUs of it, that have recovered."""
    return kind == "uncordon" or (kind == "cordon-gpus" and not saga.faulty_gpus)


def may_call(kind: SagaKind) -> bool:
    """Return whether a saga of this kind may call a provider, or lead to one that does."""
    definition = DEFINITIONS[kind]
    changes = definition.brings_node or definition.removes_node
    return changes or definition.remediates or definition.disrupts


def _names(spec: PoolSpec) -> Iterable[str]:
    """Return the names of a pool's providers, each once."""
    return dict.fromkeys((spec.provider, *(each.name for each in spec.providers)))


def _scopes(providers: Iterable[str]) -> tuple[str, ...]:
    return tuple(scope_of("", each) for each in providers if each)
