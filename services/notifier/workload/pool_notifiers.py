"""Selects a pool's notifier: the fleet's, or those that its `notifiers` names."""

from collections.abc import Mapping, Sequence

import msgspec

from schemas.messages import LimitedDecoder
from schemas.pool_records import pool_key
from schemas.settings import PoolSpec
from schemas.topology import POOLS
from services.bus.bucket_mirror import readable_record
from services.bus.port import Bus
from services.notifier.workload.combined_notifier import CombinedNotifier
from services.notifier.workload.workload_notifier import Notifier, StepFailure
from services.primitives.coalesce import Joined


class _Spec(msgspec.Struct, frozen=True):
    notifiers: tuple[str, ...] = ()


class _Pool(msgspec.Struct, frozen=True):
    """The part of a pool's record that is read here."""

    spec: _Spec = _Spec()


_pools = LimitedDecoder(_Pool)


class PoolNotifiers:
    """Holds the fleet's notifier and the named ones."""

    def __init__(
        self,
        default: Notifier,
        named: Mapping[str, Notifier],
        configured: Mapping[str, PoolSpec],
        bus: Bus,
    ) -> None:
        """`configured`: pools of the configuration; the others' settings are in POOLS."""
        self._default = default
        self._named = named
        self._bus = bus
        self._names: dict[str, tuple[str, ...]] = {
            pool: spec.notifiers for pool, spec in configured.items()
        }
        self._combined: dict[tuple[str, ...], CombinedNotifier] = {}
        self._read = Joined(self._read_names)

    async def of(self, pool: str) -> Notifier:
        """The notifier of a pool; StepFailure if the configuration has none of that name."""
        names = self._names.get(pool)
        if names is None and self._named:
            names = await self._read(pool)
        if not names:
            return self._default
        found = self._named_ones(pool, names)
        return (
            found[0]
            if len(found) == 1
            else self._combined.setdefault(names, CombinedNotifier(found))
        )

    def _named_ones(self, pool: str, names: tuple[str, ...]) -> list[Notifier]:
        unknown = [each for each in names if each not in self._named]
        if unknown:
            known = ", ".join(self._named) or "none"
            raise StepFailure(
                f"pool {pool} has the notifier {unknown[0]!r}, which is not in `notifiers:` of the "
                f"notifier's configuration (known: {known}); add it and restart the service",
                "INVALID",
            )
        return [self._named[each] for each in names]

    async def all_of(self, pool: str) -> Sequence[Notifier]:
        """Return the notifiers of a pool, one by one."""
        found = await self.of(pool)
        return found.parts if isinstance(found, CombinedNotifier) else [found]

    async def close(self) -> None:
        """Close every notifier."""
        for each in self.all:
            await each.close()

    @property
    def all(self) -> Sequence[Notifier]:
        """Return every notifier, the fleet's first."""
        return [self._default, *self._named.values()]

    async def _read_names(self, pool: str) -> tuple[str, ...]:
        found = await self._bus.get(POOLS, pool_key(pool))
        pool_record = readable_record(found, _pools)
        return pool_record.spec.notifiers if pool_record else ()
