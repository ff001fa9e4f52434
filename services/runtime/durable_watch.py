"""Recreates a durable that was deleted while its service runs, from where it was.

The server answers a pull from a durable that does not exist with nothing but a status. Here its
acknowledgement floor is remembered, so that a new durable begins there: what was settled is not
delivered again, and nothing that was not is passed over. A durable that went with its stream is
recreated without a report: the `StoreWatch` reports the stream's loss.
"""

import logging
from datetime import datetime
from typing import Final

from schemas.fleet_queries import CurrentFailure
from schemas.stream_specs import DurableSpec
from services.bus.port import Bus
from services.bus.topology_setup import (
    CONSUMER_NOT_FOUND,
    STREAM_NOT_FOUND,
    DurablePosition,
    restore_durable,
)
from services.primitives.clock import Clock
from services.primitives.errors import BusError, NavarchError, Refused, SetupError
from services.runtime.failure_register import FailureRegister

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0


class DurableWatch:
    """Watches one durable of a service."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        durable: DurableSpec,
        failures: FailureRegister,
        replicas: int,
    ) -> None:
        """Recreate with so many replicas of a stream, where it is gone as well."""
        self._bus = bus
        self._clock = clock
        self._durable = durable
        self._name = f"{durable.stream}/{durable.name}"
        self._failures = failures
        self._replicas = replicas
        self._known: DurablePosition | None = None

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                self._failures.update(self._name, await self.look())
            except BusError as error:
                log.info("durable not looked at: %s", error)

    async def look(self) -> list[CurrentFailure]:
        """Look once; recreate what is gone. Returns what operators should know of."""
        durable = self._durable
        name = f"{durable.stream}.{durable.name}"
        try:
            info = await self._bus.admin(f"CONSUMER.INFO.{name}", {})
        except Refused as error:
            if error.code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                raise
            stream_is_gone = error.code == STREAM_NOT_FOUND
        else:
            self._known = DurablePosition(
                int(info["ack_floor"]["stream_seq"]), datetime.fromisoformat(info["created"])
            )
            return []
        try:
            of_lost_stream = stream_is_gone or await self._is_older_than_stream()
            began = await restore_durable(self._bus, durable, self._known, self._replicas)
        except NavarchError as error:
            if stream_is_gone:
                log.warning("%s is gone with its stream: %s", self._name, error)
                return []
            damaged = isinstance(error, SetupError)
            return [
                CurrentFailure(
                    failure="consumer-damaged" if damaged else "consumer-missing",
                    about=self._name,
                    reason=f"the durable is gone and cannot be created again: {error}",
                    remedy="see what nats-server logs, and restart it; nothing is lost meanwhile",
                )
            ]
        if of_lost_stream:
            log.warning("%s was lost with its stream and created again", self._name)
            return []
        return [
            CurrentFailure(
                failure="consumer-missing",
                about=self._name,
                reason=f"the durable was deleted; it was created again, from message {began} on",
                remedy="find out who deletes consumers (`nats consumer rm`); what its stream has "
                "is delivered",
            )
        ]

    async def _is_older_than_stream(self) -> bool:
        """Whether the stream was created again since the durable was."""
        if self._known is None:
            return False
        info = await self._bus.admin(f"STREAM.INFO.{self._durable.stream}", {})
        return self._known.created < datetime.fromisoformat(info["created"])
