"""Compares a configuration with the pools that a fleet has. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from schemas.duration import Duration, encode_hook, written_duration
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from services.settings.provider_choices import whole_racks

ABSENT: Any = None
"""The value of a key that is not there."""


class SettingChange(msgspec.Struct, frozen=True):
    """Describes one changed value of a pool."""

    key: str
    """`autoscaling.jobs_per_node`."""
    old: Any
    new: Any


class PoolDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what changes of one pool."""

    pool: str
    change: Literal["added", "changed", "unlisted"]
    """`unlisted`: the configuration does not have it; it is kept with its nodes."""
    desired: int
    """How many nodes it has now; 0: it is added."""
    desired_after: int
    settings: tuple[SettingChange, ...] = ()
    """Of an added pool, and of an unlisted one: none."""


def is_unlisted(record: PoolRecord, configured: Collection[str]) -> bool:
    """Return whether a pool stays although its configuration has it no longer."""
    return not record.applied and not record.removing and record.name not in configured


def size_within(spec: PoolSpec, nodes: int) -> int:
    """The desired size of a pool of so many nodes that gets these settings."""
    return min(max(whole_racks(spec, nodes), spec.min_nodes), spec.max_nodes)


def pool_differences(
    records: Iterable[PoolRecord], specs: Mapping[str, PoolSpec]
) -> tuple[PoolDifference, ...]:
    """Compare the pools of POOLS with those of a configuration, in order of their names.

    `specs`: pool -> its settings, as they would be stored.
    """
    there = {each.name: each for each in records}
    names = sorted({*there, *specs})
    found = (_difference(name, there.get(name), specs.get(name)) for name in names)
    return tuple(each for each in found if each is not None)


def _difference(
    name: str, record: PoolRecord | None, spec: PoolSpec | None
) -> PoolDifference | None:
    if spec is None:
        if record is None or not is_unlisted(record, ()):
            return None
        size = record.desired
        return PoolDifference(pool=name, change="unlisted", desired=size, desired_after=size)
    if record is None:
        return PoolDifference(pool=name, change="added", desired=0, desired_after=spec.min_nodes)
    size = size_within(spec, record.desired)
    changes = tuple(changes_between(record.spec, spec))
    if not changes and size == record.desired:
        return None
    return PoolDifference(
        pool=name, change="changed", desired=record.desired, desired_after=size, settings=changes
    )


def changes_between(old: PoolSpec, new: PoolSpec) -> Iterator[SettingChange]:
    """Every value that differs, in the order of the settings."""
    return value_changes(dict(_values(_plain(old))), dict(_values(_plain(new))))


def value_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[SettingChange]:
    """Every value that differs."""
    for key in {**before, **after}:
        if before.get(key, ABSENT) != after.get(key, ABSENT):
            yield SettingChange(key, before.get(key, ABSENT), after.get(key, ABSENT))


def _plain(spec: PoolSpec) -> Any:
    return msgspec.to_builtins(spec, enc_hook=_as_written)


def _as_written(value: Any) -> Any:
    """A duration as a configuration has it."""
    if isinstance(value, Duration):
        return written_duration(value)
    return encode_hook(value)


def _values(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested settings; an empty mapping is one, so that nothing is left out."""
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from _values(each, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
