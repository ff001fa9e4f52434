"""HARDWARE: kept by the pool-manager alone, looked into before a node is admitted."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from schemas import subjects
from schemas.hardware_denylist import HardwareAdd, HardwareForget, HardwareRecord
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.topology import HARDWARE
from services.bus.bucket_mirror import BucketView
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.pool_manager.planner.admission import denied_hardware
from services.pool_manager.planner.fixed_identity import duplicates
from services.primitives.clock import Clock
from services.primitives.errors import Conflict

log = logging.getLogger(__name__)


class UnknownHardwareError(ValueError):
    """The hardware that is to be forgotten is not on the list."""


class HardwareList:
    """The list, mirrored; `view.run` must be running."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self.view: BucketView[HardwareRecord] = BucketView(bus, HARDWARE, HardwareRecord)

    async def looked_up(self, node: NodeRecord | None) -> NodeRecord | None:
        """A node that is still to be admitted, with what is known against its hardware."""
        if node is None or node.state == "active":
            return node
        if not node.gpus and not duplicates(node):
            return node
        await self.view.caught_up()
        return msgspec.structs.replace(
            node, denied_reason=denied_hardware.refused(node, self.view.records)
        )

    async def condemn(self, records: Mapping[str, HardwareRecord]) -> None:
        """Remember hardware; what is known already is kept as it was first recorded."""
        if any(each.reporter for each in records.values()):
            await self.view.caught_up()
            if not denied_hardware.within_limit(records, self.view.records, self._clock.now()):
                log.warning(
                    "not listed: the node's reports had another GPU listed within the last day",
                    extra={"hardware": ", ".join(records)},
                )
                return
        for key, record in records.items():
            lasts = record.until - record.since if record.until else None
            seconds = int(lasts.total_seconds()) if lasts else denied_hardware.TTL_SECONDS
            try:
                await self._bus.create(HARDWARE, key, encode(record), ttl_seconds=seconds)
            except Conflict:
                continue
            log.warning("bad hardware", extra={"hardware": key, "reason": record.reason})

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Subject -> what answers it."""
        return {
            subjects.query("hardware"): self._list,
            subjects.order_wildcard("hardware-add"): self._add,
            subjects.order_wildcard("hardware-forget"): self._forget,
        }

    async def _list(self, _: bytes, __: Headers) -> bytes:
        await self.view.caught_up()
        return _encode_records(self.view.records.values())

    async def _add(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=HardwareAdd)
        record = HardwareRecord(
            kind=asked.kind,
            value=asked.value,
            reason=asked.reason,
            since=self._clock.now(),
            node=asked.node,
            by=requester(headers, asked.by),
        )
        await self.condemn({denied_hardware.key(asked.kind, asked.value): record})
        return _encode_records([record])

    async def _forget(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=HardwareForget)
        key = denied_hardware.key(asked.kind, asked.value)
        await self.view.caught_up()
        known = self.view.records.get(key)
        if known is None:
            raise UnknownHardwareError(
                f"no {asked.kind} {asked.value!r} is listed; see navarch hardware list"
            )
        await self._bus.delete(HARDWARE, key)
        by = requester(headers, asked.by)
        log.info("hardware forgotten", extra={"hardware": key, "by": by})
        return _encode_records([known])


def _encode_records(records: Iterable[HardwareRecord]) -> bytes:
    found: list[Any] = sorted(records, key=lambda each: (each.since, each.kind, each.value))
    return msgspec.json.encode(found)
