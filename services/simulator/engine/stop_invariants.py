"""Checks stops: under one, the services begin no saga and order no removal by themselves."""

from datetime import datetime, timedelta
from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.pool_records import PoolRecord
from schemas.stops import FLEET, PLACES, Stop, StopsRecord, StopState, scope_of
from schemas.topology import INSTANCES
from services.bus.port import Stored
from services.pool_manager.planner.safety import stop_gate
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulation_context import SimulationContext, written_pool
from services.simulator.engine.virtual_time import moment

WITHIN_SECONDS: Final = 5.0
"""After so long a stop holds everything."""

_stops: Final = decoder(StopsRecord)
_instances: Final = decoder(InstanceRecord)


class StopInvariants:
    """Looks at every record in which something begins."""

    def __init__(
        self, simulation: SimulationContext, invariants: Invariants, skew_seconds: float
    ) -> None:
        """Compare the moments of decisions, by clocks that are wrong by `skew_seconds` at most."""
        self._simulation = simulation
        self._invariants = invariants
        self._grace = timedelta(seconds=WITHIN_SECONDS + 2 * skew_seconds)
        self._keys = {f"$KV.{bucket.name}.{key}" for bucket, key in PLACES}
        self._record = StopsRecord()
        self._since: dict[str, datetime] = {}
        """Scope -> since when it is stopped, by the true clock."""
        self._open: set[str] = set()
        self._proofs: set[str] = set()
        simulation.watchers.append(self._on_stored)

    @property
    def in_force(self) -> bool:
        """Return whether anything is stopped."""
        return bool(self._record.stops)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        now = moment(self._simulation.now())
        if stored.subject in self._keys and stored.data:
            record = _stops.decode(stored.data)
            if record.number > self._record.number:
                self._record = record
                self._since = {scope: self._since.get(scope, now) for scope in record.stops}
        elif (pool := written_pool(stream, stored)) is not None:
            self._begun(pool)
        elif stream == f"KV_{INSTANCES.name}" and stored.data:
            self._ordered(_instances.decode(stored.data))

    def _in_force(self, at: datetime) -> StopState:
        """Return the stops that must hold what is decided at a moment."""
        stops: dict[str, Stop] = {
            scope: each
            for scope, each in self._record.stops.items()
            if self._since[scope] + self._grace < at
            and (each.until is None or at < each.until - self._grace)
        }
        return StopState(stops)

    def _begun(self, pool: PoolRecord) -> None:
        fresh = pool.open.keys() - self._open
        self._open |= fresh
        known = self._invariants
        # What is left to do of a saga whose log is lost begins again, as another one.
        if known.destroyed or known.restored:
            return
        for saga in sorted(fresh):
            opened = pool.open[saga]
            if opened.cause:
                continue
            stops = self._in_force(opened.since)
            stop = stop_gate.holds(stops, pool.name, pool.spec, opened.kind, opened, opened.since)
            if stop is not None:
                known.fail(f"{saga} begins by itself, and {stop.scope} is stopped", saga)

    def _ordered(self, record: InstanceRecord) -> None:
        orders = [(record.provider_id, record.authority)]
        orders += [(each.provider_id, each.authority) for each in record.surplus]
        for provider_id, by in orders:
            if by is None or by.kind != "proof" or by.at is None or by.request in self._proofs:
                continue
            self._proofs.add(by.request)
            scopes = FLEET, scope_of(record.pool, ""), scope_of("", record.launch.provider)
            stop = self._in_force(by.at).find(scopes, by.at)
            if stop is not None and not self._invariants.restored:
                self._invariants.fail(
                    f"{provider_id} is ordered to go by a sweep, and {stop.scope} is stopped",
                    record.instance,
                )
