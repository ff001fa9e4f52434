"""Finds out whether the server still stores messages, and whether it has lost what it stored.

A full disk or a full stream refuses every event about itself; so the notifier, which can alert
without the bus, tries to write, asks the other services whose writes are refused, and looks at the
streams that refuse what they have no room for. A stream that is gone is created again while the
services run; what it held is reported as lost, except what is kept in memory and rebuilt.
"""

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.fleet_events import StoreCause
from schemas.fleet_queries import CurrentFailure
from schemas.messages import LimitedDecoder
from schemas.permissions import SERVICES
from schemas.stream_specs import StreamSpec
from schemas.topology import EVENTS, EVERY_STREAM, INTAKE, LEASES
from services.bus.port import Bus
from services.bus.topology_setup import STREAM_NOT_FOUND, set_up_stream
from services.notifier.flood_watch import FloodWatch
from services.notifier.store_losses import (
    SHOWN,
    ObservedStream,
    is_expendable,
    loss_between,
    read_state,
    store_lost,
)
from services.primitives.clock import Clock
from services.primitives.errors import BusError, NavarchError, Refused, SetupError
from services.runtime.failure_query import failure_answers
from services.runtime.failure_register import FailureRegister
from services.runtime.store_refusals import REMEDIES, refusal_cause

log = logging.getLogger(__name__)
_current = LimitedDecoder(list[CurrentFailure])

LOOK_SECONDS: Final = 5.0
REFUSALS_MIN: Final = 2
"""Consecutive refused writes before it is reported: a new leader is elected sooner."""
FULL_SHARE: Final = 0.95
PROBE_KEY: Final = "notifier.probe"
PROBE_TTL_SECONDS: Final = 60
OTHERS: Final = tuple(each for each in SERVICES if each != "notifier")
HEARD: Final = timedelta(seconds=90)
"""How long what a service reported counts: a replica may be too busy to answer."""


class StoreWatch:
    """Watches what the server stores."""

    def __init__(
        self, bus: Bus, clock: Clock, failures: FailureRegister, replicas: int = 1
    ) -> None:
        """Report to `failures`; create streams again with so many `replicas`."""
        self._bus = bus
        self._clock = clock
        self._failures = failures
        self._replicas = replicas
        self._refusals = 0
        self._floods = FloodWatch(bus, clock)
        self._known: dict[str, ObservedStream] = {}
        self._heard: dict[str, tuple[CurrentFailure, datetime]] = {}
        """What another service reported last of each stream, and when."""
        self._losses: dict[str, tuple[str, datetime]] = {}
        """Stream -> what happened to it last, and when."""

    async def run(self) -> None:
        """Look for ever."""
        while True:
            if self._bus.connected:  # while the bus is away nothing is known
                self._failures.update("store", await self.look())
            await self._clock.sleep(LOOK_SECONDS)

    async def look(self) -> list[CurrentFailure]:
        """Look at the stores once."""
        refusal, before = await self._refusal(), self._stored_leases()
        self._refusals = self._refusals + 1 if refusal else 0
        looks = await asyncio.gather(*(self._look_at(each) for each in EVERY_STREAM))
        found = [each for each in looks if each is not None]
        if self._refusals >= REFUSALS_MIN:
            stores_others = 0 < before < self._stored_leases()
            cause = refusal_cause(refusal, stores_others=stores_others)
            reason = f"nats-server stores nothing: {refusal}"
            found.append(_failure("nats-server", reason, REMEDIES[cause], cause))
        found += await self._refused_to_others()
        return [*found, *await self._flooding(), *self._shown_losses()]

    def _stored_leases(self) -> int:
        """Return the last sequence of the stream that is probed, as of the last look."""
        known = self._known.get(LEASES.stream().name)
        return known.last if known else 0

    async def _refused_to_others(self) -> list[CurrentFailure]:
        """Streams that take no writes of the other services, which may be the only ones to know.

        They cannot always publish it: the stream may be EVENTS.
        """
        now = self._clock.now()
        for answer in await asyncio.gather(*map(self._failures_of, OTHERS)):
            for each in answer:
                if each.failure == "store-unwritable":
                    self._heard[each.about] = each, now
        self._heard = {
            about: (each, at) for about, (each, at) in self._heard.items() if now - at < HEARD
        }
        return [each for each, _ in self._heard.values()]

    async def _failures_of(self, service: str) -> list[CurrentFailure]:
        try:
            answers = await failure_answers(self._bus, service)
            return [each for answer in answers for each in _current.decode(answer)]
        except (NavarchError, msgspec.DecodeError) as error:
            log.debug("failures of the %s are not known: %s", service, error)
            return []

    async def _flooding(self) -> list[CurrentFailure]:
        """Bound what each node holds of EVENTS, as it was seen just now."""
        if (seen := self._known.get(EVENTS.name)) is None:
            return []
        try:
            intake = self._known.get(INTAKE.name)
            waiting = intake.messages if intake else 0
            return await self._floods.look(seen.used_bytes, seen.last, waiting)
        except BusError as error:
            log.info("floods not looked at: %s", error)
            return []

    def _shown_losses(self) -> list[CurrentFailure]:
        now = self._clock.now()
        self._losses = {
            stream: (what, at) for stream, (what, at) in self._losses.items() if now - at < SHOWN
        }
        return [store_lost(stream, what, at) for stream, (what, at) in self._losses.items()]

    async def _refusal(self) -> str:
        try:
            await self._bus.put(LEASES, PROBE_KEY, b"{}", ttl_seconds=PROBE_TTL_SECONDS)
        except BusError as error:
            return str(error)
        return ""

    async def _look_at(self, spec: StreamSpec) -> CurrentFailure | None:
        """Create a stream again that is gone; keep what it lost; return how it is full."""
        try:
            info = await self._bus.admin(f"STREAM.INFO.{spec.name}", {})
        except Refused as error:
            # Of an earlier release's pool-manager there is no INTAKE, which it has no room for.
            if error.code == STREAM_NOT_FOUND and (spec is not INTAKE or spec.name in self._known):
                await self._create_again(spec)
            return None
        except BusError as error:
            log.info("stream not looked at: %s", error)
            return None
        state = read_state(info)
        if what := loss_between(spec, self._known.get(spec.name), state):
            self._losses[spec.name] = what, self._clock.now()
        self._known[spec.name] = state
        if spec.discard != "new" or spec.bytes_max <= 0:
            return None
        used, most = int(info["state"]["bytes"]), int(info["config"]["max_bytes"])
        if most <= 0 or used < FULL_SHARE * most:
            return None
        return _failure(
            f"stream {spec.name}",
            f"{used} of its {most} bytes are used, and it refuses what is beyond",
            "remove what has ended: `nats stream subjects "
            f"{spec.name}` shows what takes the room, `nats stream purge {spec.name} --subject "
            "SUBJECT` removes it",
            "space",
        )

    async def _create_again(self, spec: StreamSpec) -> None:
        try:
            await set_up_stream(self._bus, spec, self._replicas)
        except (BusError, SetupError) as error:
            what = f"was deleted and cannot be created again ({error})"
        else:
            what = "was deleted and created again"
            self._known.pop(spec.name, None)
            if is_expendable(spec):
                return
        self._losses[spec.name] = what, self._clock.now()


def _failure(about: str, reason: str, remedy: str, cause: StoreCause) -> CurrentFailure:
    return CurrentFailure(
        failure="store-unwritable", about=about, reason=reason, remedy=remedy, store_cause=cause
    )
