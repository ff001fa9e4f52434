"""Recognises launches whose undo would remove a node that is in service.

That is so where the store was restored from a backup that is older than the node's admission: the
log of its launch is open again, its deadline has passed, and it unwinds.
"""

from typing import Final

from schemas.messages import decoder
from schemas.node_records import HeartbeatRecord, node_key
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.topology import HEARTBEATS, POOLS
from services.bus.bucket_mirror import readable_record
from services.bus.port import Bus
from services.saga.saga_log import read_state

_beat: Final = decoder(HeartbeatRecord)
_fleet: Final = decoder(FleetRecord)


class RestoredLaunches:
    """Asks the node's agent, and when the store was restored."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def why_kept(self, pool: str, node: str, saga: str) -> str:
        """Return why a node may be in service, whatever its launch's log says; empty: it is not."""
        beat = readable_record(await self._bus.get(HEARTBEATS, node_key(pool, node)), _beat)
        if beat is not None and beat.admitted_at is not None:
            at = f"{beat.admitted_at:%Y-%m-%d %H:%M:%S}Z"
            return (
                f"its agent has read that it was admitted at {at}, and the log of its launch has "
                "it under way: the store was restored from a backup"
            )
        fleet = readable_record(await self._bus.get(POOLS, FLEET_KEY), _fleet)
        if fleet is None or fleet.restored_at is None:
            return ""
        state = await read_state(self._bus, saga)
        if state is not None and state.started_at >= fleet.restored_at:
            return ""
        at = f"{fleet.restored_at:%Y-%m-%d %H:%M:%S}Z"
        return f"the store was restored from a backup at {at}: it may have been admitted before"
