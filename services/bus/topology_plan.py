"""Plans what this release's set-up would change of the streams and consumers of a server."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from schemas.topology import DURABLES, EVENTS, EVERY_STREAM
from services.bus.topology_setup import BEGINNING, FIXED_STREAM_OPTIONS, differences

Configs = Mapping[str, Mapping[str, Any]]
"""Name of a stream or consumer -> its options, as the server has them."""


class TopologyChange(msgspec.Struct, frozen=True, kw_only=True):
    """One stream or consumer that differs."""

    about: str
    options: tuple[str, ...]
    """`max_age: 30 -> 60`; none: it does not exist."""
    is_possible: bool = True
    """False: the server cannot change it in place."""


def topology_changes(streams: Configs, durables: Configs) -> Iterator[TopologyChange]:
    """Yield the changes in the order in which they would be made; replicas stay as they are."""
    replicas = int(streams.get(EVENTS.name, {}).get("num_replicas", 1))
    for spec in EVERY_STREAM:
        if (found := streams.get(spec.name)) is None:
            yield TopologyChange(about=f"stream {spec.name}", options=())
        elif different := differences(spec.config(replicas), dict(found)):
            fixed = any(name in different for name in FIXED_STREAM_OPTIONS)
            yield _change(f"stream {spec.name}", different, is_possible=not fixed)
    for durable in DURABLES:
        about = f"consumer {durable.name} of {durable.stream}"
        if (found := durables.get(durable.name)) is None:
            yield TopologyChange(about=about, options=())
            continue
        different = differences(durable.config(replicas), dict(found))
        for name in BEGINNING:
            different.pop(name, None)
        if different:
            yield _change(about, different)


def _change(
    about: str, different: Mapping[str, tuple[Any, Any]], *, is_possible: bool = True
) -> TopologyChange:
    options = tuple(f"{name}: {old!r} -> {new!r}" for name, (new, old) in different.items())
    return TopologyChange(about=about, options=options, is_possible=is_possible)
