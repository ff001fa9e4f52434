"""The plugins of one process: their records, their switches, and what is reported about them.

A plugin from outside that keeps the whole interpreter, as C code may, stops the event loop of its
service. A timer of the interpreter's own, in C, then prints every thread's stack and ends the
process, and the file of steps names the plugin to the next one.
"""

import asyncio
import faulthandler
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from schemas.fleet_queries import CurrentFailure
from schemas.plugin_records import PluginHealth, PluginSwitchRecord
from schemas.topology import LEASES
from services.bus.port import Bus, Endpoint, Headers
from services.bus.record_bucket import RecordBucket
from services.primitives.clock import Clock
from services.primitives.errors import BusError, UnreadableRecord
from services.primitives.plugin_boundary import GuardedPlugin
from services.primitives.plugin_contract import PluginContract, source_of
from services.runtime.failure_register import FailureRegister
from services.runtime.plugin_exits import EXITS_MAX, PluginExitFile

log = logging.getLogger(__name__)

PLUGINS_MAX: Final = 1_000
"""Of one process; those of pools that no longer exist make room."""
LOOK_SECONDS: Final = 1.0
INTERPRETER_SECONDS_MAX: Final = 30
"""A process whose event loop is stopped for so long, and that has plugins from outside, ends."""
LATE_SECONDS: Final = 3.0
"""An event loop that comes back this late was stopped; the plugin that ran then is named."""
SWITCH_PREFIX: Final = "pool-manager.plugin."
NAME_DIGITS: Final = 24
STDERR: Final = 2
OBSERVER: Final = "plugins"


class PluginHost:
    """Makes the guards of a process's plugins, and knows them all."""

    def __init__(
        self,
        service: str = "",
        *,
        threads: bool = False,
        exits: PluginExitFile | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`threads`: plugins from outside have threads of their own.

        `exits`: of a process that is the service's own; one that is held up by a plugin is ended.
        """
        self._service = service
        self._threads = threads
        self._exits = exits
        self._monotonic = monotonic
        self._guards: dict[tuple[str, str, str], GuardedPlugin] = {}
        self._switches: dict[str, PluginSwitchRecord] = {}
        self._changed = asyncio.Event()

    def guard(
        self,
        contract: PluginContract,
        plugin: Any,
        name: str,
        about: str = "",
        *,
        make: Callable[[], Any] | None = None,
        blamed: Any = None,
    ) -> GuardedPlugin:
        """Return the plugin's guard; it takes the place of an earlier one of the same place."""
        source = source_of(plugin if blamed is None else blamed, contract.kind, name, about)
        key = _key(contract.kind.name, name)
        guard = GuardedPlugin(
            contract,
            plugin,
            source,
            make=make,
            threads=self._threads,
            blamed=blamed,
            on_step=self._exits.recorder(key, about) if self._exits is not None else None,
            on_change=self._changed.set,
            monotonic=self._monotonic,
        )
        place = (contract.kind.name, name, about)
        if (earlier := self._guards.pop(place, None)) is not None:
            earlier.end()
        self._guards[place] = guard
        while len(self._guards) > PLUGINS_MAX:
            self._guards.pop(next(iter(self._guards))).end()
        if (switch := self._switches.get(name)) is not None and switch.disabled:
            guard.switch(switch.by or "an operator")
        elif guard.outside:
            since = switch.at.timestamp() if switch is not None and switch.at else 0.0
            self._note_exits(guard, key, since)
        return guard

    def _note_exits(self, guard: GuardedPlugin, key: str, since: float) -> None:
        if self._exits is None or not (ended := self._exits.recent(key, time.time(), since)):
            return
        last = self._exits.exits.last.get(key, "")
        guard.note_exit(last)
        if ended >= EXITS_MAX:
            guard.turn_off(f"is off: it ended its service's process {ended} times, last in {last}")

    def health(self) -> list[PluginHealth]:
        """Return the record of each plugin."""
        return [each.health(self._service) for each in self._guards.values()]

    def failures(self) -> Iterator[CurrentFailure]:
        """Yield what is wrong with plugins now, but for those that an operator took out."""
        for (kind, name, about), guard in self._guards.items():
            if (reason := guard.reason) and not guard.disabled_by:
                place = f" of {about}" if about else ""
                again = f"; `navarch plugins enable {name}` begins with it again"
                yield CurrentFailure(
                    failure="plugin-failing",
                    about=f"{kind} {name}{place}",
                    reason=reason,
                    remedy=(
                        f"see `navarch plugins` for its last error, correct it, or take it out "
                        f"with `navarch plugins disable {name}`{again if guard.is_out else ''}"
                    ),
                )

    def apply(self, switch: PluginSwitchRecord) -> None:
        """Take the plugins of a name out, or begin with them again."""
        before = self._switches.get(switch.name)
        self._switches[switch.name] = switch
        if before is not None and before.number == switch.number:
            return
        for (kind, name, _), guard in self._guards.items():
            if name != switch.name:
                continue
            if switch.disabled:
                guard.switch(switch.by or "an operator")
            else:
                guard.switch("")
                if self._exits is not None:
                    self._exits.forget(_key(kind, name))

    def endpoint(self) -> Endpoint:
        """Answer the records of this process's plugins."""

        async def answer(_: bytes, __: Headers) -> bytes:
            return msgspec.json.encode(self.health())

        return answer

    async def run(self, failures: FailureRegister, clock: Clock) -> None:
        """Report what fails, and see that the event loop goes on, for ever."""
        try:
            while True:
                self._changed.clear()
                found = list(self.failures())
                failures.update(OBSERVER, found)
                watched = [each for each in self._guards.values() if each.outside]
                if watched or found:
                    await self._look(clock, watched if self._threads else [])
                else:
                    await self._changed.wait()
        finally:
            if self._exits is not None:
                faulthandler.cancel_dump_traceback_later()

    async def _look(self, clock: Clock, watched: Sequence[GuardedPlugin]) -> None:
        if watched and self._exits is not None:
            faulthandler.dump_traceback_later(INTERPRETER_SECONDS_MAX, exit=True, file=STDERR)
        began = clock.monotonic()
        await clock.sleep(LOOK_SECONDS)
        late = clock.monotonic() - began - LOOK_SECONDS
        if watched and late >= LATE_SECONDS:
            for each in watched:
                if each.just_blocked(late):
                    log.error(
                        "%s kept the whole interpreter for %.1f s, and nothing else in it ran",
                        each.source.text(each.kind),
                        late,
                    )

    async def follow(self, bus: Bus) -> None:
        """Apply operators' switches, for ever."""
        bucket = switches(bus)
        async for entry in bus.watch(LEASES, f"{SWITCH_PREFIX}*"):
            if not entry.value:
                continue
            try:
                self.apply(bucket.decode(entry))
            except UnreadableRecord as error:
                log.warning("a switch of a plugin cannot be read: %s", error)

    async def read(self, bus: Bus) -> None:
        """Apply the switches that are stored: what is disabled is not called at a start."""
        bucket = switches(bus)
        try:
            for entry in await bus.entries(LEASES, f"{SWITCH_PREFIX}*"):
                self.apply(bucket.decode(entry))
        except (BusError, UnreadableRecord) as error:
            log.warning("which plugins are disabled is not known yet: %s", error)

    def close(self) -> None:
        """End the threads of plugins, and take note that the process ends as it should."""
        for each in self._guards.values():
            each.end()
        if self._exits is not None:
            self._exits.close()


def switches(bus: Bus) -> RecordBucket[PluginSwitchRecord]:
    """Return the switches of all plugins."""
    return RecordBucket(bus, LEASES, PluginSwitchRecord)


def switch_key(name: str) -> str:
    """Return the key of the switch of the plugins of a name."""
    return SWITCH_PREFIX + hashlib.sha256(name.encode()).hexdigest()[:NAME_DIGITS]


def _key(kind: str, name: str) -> str:
    return f"{kind} {name}"
