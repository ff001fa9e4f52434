"""The same fault on many nodes of a pool at once, where it makes none of them unhealthy. Pure.

XID 45 on sixty nodes is one job that died, and most often another node's crash came before it. It
calls for nothing to be done about sixty nodes, but people should hear of it as one thing. What
makes nodes unhealthy is the pool-manager's to hold together, because it acts on it.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from schemas.settings import IncidentSpec

KINDS_MAX: Final = 10_000
"""Pools, kinds and codes under watch; the oldest are forgotten first."""
NAMED_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class What:
    """What nodes have in common."""

    pool: str
    kind: str
    code: int


@dataclass(frozen=True, slots=True)
class Crash:
    """A fault that made a node unhealthy, shortly before others followed."""

    node: str
    kind: str
    code: int
    fault: str
    at: float


@dataclass(frozen=True, slots=True)
class Wave:
    """One trouble of many nodes."""

    what: What
    nodes: tuple[str, ...]
    first: float
    last: float
    after: Crash | None = None


@dataclass(slots=True)
class _Open:
    first: float
    last: float
    nodes: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Waves:
    """Everything that was seen within the last moments."""

    _seen: dict[What, dict[str, float]] = field(default_factory=dict)
    _open: dict[What, _Open] = field(default_factory=dict)
    _crashes: dict[str, Crash] = field(default_factory=dict)

    def adopt(self, what: What, first: float, last: float) -> None:
        """Take over a wave that was told of before."""
        self._open[what] = _Open(first, last)

    def crashed(self, pool: str, crash: Crash) -> None:
        """Note a fault that others may follow from."""
        self._crashes[pool] = crash

    def take(self, what: What, node: str, at: float, spec: IncidentSpec) -> Wave | None:
        """Take one fault; return what may be a wave, by its number of nodes alone."""
        opened = self._open.get(what)
        if opened is not None:
            opened.last = max(opened.last, at)
            opened.nodes.add(node)
            return None
        seen = self._seen.pop(what, {})
        seen = {name: since for name, since in seen.items() if since > at - spec.window}
        seen[node] = at
        self._seen[what] = seen
        if len(self._seen) > KINDS_MAX:
            del self._seen[next(iter(self._seen))]
        if len(seen) < spec.nodes:
            return None
        crash = self._crashes.get(what.pool)
        first = min(seen.values())
        follows = crash is not None and first - spec.window <= crash.at <= at
        same = crash is not None and (crash.kind, crash.code) == (what.kind, what.code)
        after = crash if follows and not same else None
        return Wave(what, tuple(sorted(seen)), first, at, after)

    def open(self, wave: Wave) -> None:
        """Count what follows to this wave, and tell of it no second time."""
        self._seen.pop(wave.what, None)
        self._open[wave.what] = _Open(wave.first, wave.last, set(wave.nodes))

    def over(self, now: float, quiet_seconds: float) -> list[Wave]:
        """End the waves to which no node was added for so long."""
        ended = [
            Wave(what, tuple(sorted(each.nodes)), each.first, each.last)
            for what, each in self._open.items()
            if now - each.last > quiet_seconds
        ]
        for wave in ended:
            del self._open[wave.what]
        return ended


def is_wave(wave: Wave, spec: IncidentSpec, size: int) -> bool:
    """Whether so many nodes of a pool of this size are one trouble."""
    return len(wave.nodes) >= max(spec.nodes, math.ceil(size * spec.percent / 100 - 1e-9))


def reason(wave: Wave) -> str:
    """What happened, in a sentence."""
    what = named(wave.what.kind, wave.what.code)
    said = f"{len(wave.nodes)} nodes with {what} at once; none of them is unhealthy for it"
    if wave.after is None:
        return said
    crash = wave.after
    return f"{said}; it came after {named(crash.kind, crash.code)} on {crash.node}"


def named(kind: str, code: int) -> str:
    """A fault in words."""
    shown = kind.upper() if kind in ("xid", "sxid") else kind.replace("_", " ")
    return f"{shown} {code}" if code else shown
