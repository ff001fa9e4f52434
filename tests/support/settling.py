"""Waiting until a durable has dealt with all that lies in its stream.

A consumer's `num_pending` alone is not enough: the server signals a stored message to its consumers
after it has acknowledged it to the publisher, so that for a moment nothing seems to wait. What
decides is the acknowledgement floor, compared with the last message that the durable is to get.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from schemas.stream_specs import DurableSpec
from schemas.topology import DURABLES, EVENTS, INTAKE
from services.bus.fact_copies import all_copied
from services.bus.port import Bus
from services.primitives.errors import Refused

NO_MESSAGE = 10037
LOOK_SECONDS = 0.01
"""Between two looks: no event says that a durable is idle."""


async def settled(bus: Bus, stream: str, durable: str, within_seconds: float = 60) -> None:
    """Return once everything stored so far is acknowledged, or given up."""
    async with asyncio.timeout(within_seconds):
        while not await is_settled(bus, stream, durable):
            await asyncio.sleep(LOOK_SECONDS)


async def busy(bus: Bus, durables: Iterable[DurableSpec] = DURABLES) -> list[str]:
    """Names of the durables that have something left to do."""
    return [each.name for each in durables if not await is_settled(bus, each.stream, each.name)]


async def without_shares(bus: Bus) -> None:
    """Have INTAKE take any number of facts of a node, as if room had been made for long."""
    config = INTAKE.config(1) | {"max_msgs_per_subject": 1_000_000}
    await bus.admin(f"STREAM.UPDATE.{INTAKE.name}", config)


async def arriving(bus: Bus, within_seconds: float = 60) -> None:
    """Return once EVENTS has every fact of agents that was stored so far."""
    async with asyncio.timeout(within_seconds):
        while not await all_copied(bus):
            await asyncio.sleep(LOOK_SECONDS)


async def is_settled(bus: Bus, stream: str, durable: str) -> bool:
    """Return whether a durable has dealt with everything stored so far."""
    if stream == EVENTS.name and not await all_copied(bus):
        return False
    info = await bus.admin(f"CONSUMER.INFO.{stream}.{durable}", {})
    if info["num_pending"] or info["num_ack_pending"]:
        return False
    last = max([await _last(bus, stream, subject) for subject in _filters(info)], default=0)
    return int(info["ack_floor"]["stream_seq"]) >= last


def _filters(info: dict[str, Any]) -> list[str]:
    config = info["config"]
    return config.get("filter_subjects") or [config.get("filter_subject") or ">"]


async def _last(bus: Bus, stream: str, subject: str) -> int:
    try:
        found = await bus.admin(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    except Refused as error:
        if error.code == NO_MESSAGE:
            return 0
        raise
    return int(found["message"]["seq"])
