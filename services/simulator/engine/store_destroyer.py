"""Destroys what the in-memory server stores: streams and durables deleted, emptied or set back."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from schemas.topology import HEARTBEATS
from services.bus.memory.jetstream.server_state import StreamBackup
from services.primitives.errors import Refused
from services.simulator.engine.fault_kinds import WHOLE_STORE, InjectedFault
from services.simulator.engine.invariants import EVERYTHING
from services.simulator.engine.simulation_context import SimulationContext

RESTART_SECONDS: Final = 1.0
"""How long the server is away when it restarts without the end of a stream."""
STOPPED_SECONDS: Final = 3.0
"""How long the services are stopped where they are while the store is restored."""
SET_BACK_SECONDS: Final = 10.0
"""How far a stream is set back, unless the fault says otherwise."""

Backups = dict[str, tuple[dict[str, Any], StreamBackup]]
"""Stream -> its settings, and what it held."""


class StoreDestroyer:
    """Destroys streams and durables of one simulation's server."""

    def __init__(
        self,
        simulation: SimulationContext,
        cut: Callable[[float], None],
        on_lost: Callable[[str], None],
        restart: Callable[[float], None],
    ) -> None:
        """`cut` ends every connection for some seconds; `on_lost` gets each stream destroyed.

        `restart` stops every service for some seconds.
        """
        self._simulation = simulation
        self._server = simulation.server
        self._cut = cut
        self._on_lost = on_lost
        self._restart = restart
        self._timers: set[asyncio.TimerHandle] = set()
        self._single: dict[asyncio.TimerHandle, float] = {}
        """Restores of one stream, and when its backup was taken."""

    def inject(self, fault: InjectedFault) -> None:
        """Destroy now, or take a backup now that is restored later."""
        stream, durable = fault.stream, fault.durable
        loop = asyncio.get_running_loop()
        later, now = loop.call_later, loop.time()
        seconds = SET_BACK_SECONDS if fault.seconds is None else fault.seconds
        if fault.kind in WHOLE_STORE:
            stops = fault.kind == "store_restored"
            backups = self._back_up_all()
            self._timers.add(later(seconds, partial(self._restore_all, backups, now, stops=stops)))
        elif fault.kind in ("stream_deleted", "stream_purged", "durable_deleted"):
            call = {
                "stream_deleted": f"STREAM.DELETE.{stream}",
                "stream_purged": f"STREAM.PURGE.{stream}",
                "durable_deleted": f"CONSUMER.DELETE.{stream}.{durable}",
            }[fault.kind]
            try:
                self._server.admin(call, {})
            except Refused as error:
                self._simulation.note(f"not destroyed: {error}")
                return
            if not durable:
                self._on_lost(stream)
        elif stream in self._server.state.streams:
            backup = self._server.state.back_up(stream)
            self._single[later(seconds, partial(self._set_back, fault, backup))] = now

    def end(self) -> None:
        """Destroy nothing more."""
        for each in (*self._timers, *self._single):
            each.cancel()

    def _back_up_all(self) -> Backups:
        state = self._server.state
        return {
            name: (stream.asked, state.back_up(name))
            for name, stream in state.streams.items()
            if stream.asked.get("storage") != "memory"
        }

    def _restore_all(self, backups: Backups, taken: float, *, stops: bool) -> None:
        """Restart the server with what it had stored before; `stops`: no service runs then.

        The backup of one stream that was taken since is of a history that never happened now.
        """
        self._simulation.note("the whole store is set back")
        for restore, each in self._single.items():
            if each > taken:
                restore.cancel()
        if stops:
            self._restart(STOPPED_SECONDS)
        self._cut(RESTART_SECONDS)
        self._server.lose_memory()
        for stream, (settings, backup) in backups.items():
            if stream not in self._server.state.streams:  # it was deleted since
                self._server.admin(f"STREAM.CREATE.{stream}", settings)
            self._server.restore(stream, backup)
            self._on_lost(stream)
        self._on_lost(f"KV_{HEARTBEATS.name}")
        self._on_lost(EVERYTHING)

    def _set_back(self, fault: InjectedFault, backup: StreamBackup) -> None:
        state, stream = self._server.state, fault.stream
        if stream not in state.streams or fault.durable not in (*state.consumers[stream], ""):
            return
        if fault.kind == "stream_shortened":
            held, last = state.back_up(stream), backup.last_sequence
            if held.last_sequence < last:
                return
            kept = tuple(each for each in held.messages if each.sequence <= last)
            backup = StreamBackup(kept, last, held.consumers)
            self._cut(RESTART_SECONDS)
        self._simulation.note(f"{stream} {fault.durable} is set back to {backup.last_sequence}")
        self._server.restore(stream, backup, fault.durable)
        if not fault.durable:
            self._on_lost(stream)
