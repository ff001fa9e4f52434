"""Has the server refuse the credentials of terminated nodes, and end their connections.

The list of revoked keys is part of the account's token in the server. Each replica compares it with
INSTANCES: at each termination, and regularly, so that nothing is missed while no provisioner runs.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.settings import NatsSettings
from schemas.topology import INSTANCES
from services.bus.nats.account_updates import (
    Requests,
    read_account,
    replace_account,
    revoker_options,
)
from services.bus.nats.credentials_file import claims_of_token
from services.bus.nats.nats_accounts import AgentKeys, read_agent_keys, with_revocations
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import NavarchError, SetupError

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 10.0
"""Between two comparisons with the server's list, which a reload may have emptied."""
GATHER_SECONDS: Final = 0.5
"""Terminations within this time are one change of the list."""
MARGIN_SECONDS: Final = 3_600.0
"""Added to the credentials' life, for clocks that differ."""
REVOCATIONS_MAX: Final = 10_000
"""What fits the largest message of the server, with the account's permissions."""

_decoder = decoder(InstanceRecord)


def revoked_until(record: InstanceRecord, valid_seconds: float) -> float:
    """When the last credentials of a terminated node have expired; 0: it has none to revoke."""
    if record.state != "terminated" or not record.agent_key or record.terminated_at is None:
        return 0.0
    return record.terminated_at.timestamp() + valid_seconds + MARGIN_SECONDS


def merge(
    current: Mapping[str, int], terminated: Mapping[str, float], now: float
) -> dict[str, int]:
    """Return the list of revoked keys, each with its end, without those that have ended. Pure."""
    found = dict(current) | {key: int(until) for key, until in terminated.items()}
    alive = sorted(((until, key) for key, until in found.items() if until > now), reverse=True)
    return {key: until for until, key in alive[:REVOCATIONS_MAX]}


class Revoker:
    """Revokes the credentials of terminated nodes."""

    def __init__(
        self, bus: Bus, clock: Clock, nats: NatsSettings, credentials_valid: float
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._nats = nats
        self._valid_seconds = credentials_valid
        self._terminated: dict[str, float] = {}
        """Public key -> when its last credentials have expired."""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Revoke for ever; do nothing on a bus without accounts."""
        if not self._nats.revocation_file:
            await asyncio.Event().wait()
        file = Path(self._nats.revocation_file)
        keys = read_agent_keys(file)
        server = await NatsBus.connect(revoker_options(self._nats, file.parent))
        watching = asyncio.create_task(self._watch())
        try:
            await self._revoke_for_ever(keys, server)
        finally:
            watching.cancel()
            await server.close()

    async def _watch(self) -> None:
        async for entry in self._bus.watch(INSTANCES):
            if entry.removed:
                continue
            try:
                record = _decoder.decode(entry.value)
            except msgspec.MsgspecError:
                continue  # reported by those who read it
            if until := revoked_until(record, self._valid_seconds):
                self._terminated[record.agent_key] = until
                self._changed.set()

    async def _revoke_for_ever(self, keys: AgentKeys, server: Requests) -> None:
        while True:
            self._changed.clear()
            try:
                await self.revoke(keys, server)
            except NavarchError as error:
                log.warning("credentials of terminated nodes are not revoked: %s", error)
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._changed.wait()
                    await self._clock.sleep(GATHER_SECONDS)
            except TimeoutError:
                continue

    async def revoke(self, keys: AgentKeys, server: Requests) -> None:
        """Give the server the list, unless it has it."""
        now = self._clock.now().timestamp()
        self._terminated = {key: each for key, each in self._terminated.items() if each > now}
        token = await read_account(server, keys.account)
        claims = claims_of_token(token)
        if not claims:
            raise SetupError(f"the server has no account {keys.account}: is it the same fleet's?")
        current = claims["nats"].get("revocations", {})
        wanted = merge(current, self._terminated, now)
        if wanted == current:
            return
        await replace_account(server, with_revocations(keys, token, wanted))
        if added := wanted.keys() - current.keys():
            log.info("revoked credentials of terminated nodes", extra={"count": len(added)})
