"""Reads what `status` shows of a fleet: the pools, the open sagas, and what fails."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from schemas.fleet_queries import CurrentFailure, Expiry, PoolView, Query
from schemas.instance_records import InstanceRecord
from schemas.stops import STOPS_QUERY, ResumeRequest, StopsAnswer
from services.fleet_client.fleet_client import FleetClient, NoReplyError
from services.fleet_client.instance_reader import INSTANCES_PAGE, read_instances
from services.fleet_client.query_answers import decode_answer, decode_pools
from services.fleet_client.stored_answers import stored_lines
from services.primitives.errors import NavarchError
from services.runtime.stop_watch import StopWatch

SAGAS_ASKED_MAX: Final = 20
"""Open sagas of which it is read what their drains wait for."""


STOPS_SECONDS_MAX: Final = 20.0
"""Each pool is decided on once more."""


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the state of a fleet at a moment."""

    pools: tuple[PoolView, ...]
    sagas: tuple[dict[str, Any], ...]
    """The open ones, as the pools' records hold them."""
    remaining_work: tuple[str, ...]
    """What drains wait for."""
    orphans: tuple[InstanceRecord, ...]
    failures: tuple[CurrentFailure, ...]
    expiries: tuple[Expiry, ...]
    """What the connection to the bus depends on."""
    is_open: bool
    """Whether the bus lets every client do everything."""
    stops: StopsAnswer = StopsAnswer()
    """What operators have stopped, and what waits for it."""


async def fleet_state(fleet: FleetClient, sees: Callable[[str], bool]) -> FleetState:
    """Read it; `sees`: the pools that are wanted, and with an empty name the fleet's services.

    NoReplyError has the last stored answers about the pools where no pool-manager is there.
    """
    try:
        return await _read(fleet, sees)
    except NoReplyError as error:
        lines = await stored_lines(fleet.bus, datetime.now(UTC), sees)
        raise NoReplyError("\n".join([str(error), *lines])) from error


async def _read(fleet: FleetClient, sees: Callable[[str], bool]) -> FleetState:
    pools, sagas, orphans, failures, stops = await asyncio.gather(
        fleet.pages("pools", Query()),
        fleet.pages("sagas", Query()),
        _orphans(fleet),
        fleet.failures() if sees("") else _none(),
        _stops(fleet),
    )
    opened = [decode_answer(dict[str, Any], each, "sagas") for each in sagas]
    opened = [each for each in opened if sees(str(each.get("pool", "")))]
    return FleetState(
        pools=tuple(each for each in decode_pools(pools) if sees(each.name)),
        sagas=tuple(opened),
        remaining_work=tuple(await fleet.remaining_work(opened[:SAGAS_ASKED_MAX])),
        orphans=tuple(each for each in orphans if sees(each.pool)),
        failures=tuple(failures),
        expiries=tuple(fleet.expiries),
        is_open=fleet.bus.is_open and sees(""),
        stops=visible_stops(stops, sees),
    )


def visible_stops(found: StopsAnswer, sees: Callable[[str], bool]) -> StopsAnswer:
    """Return the stops that concern pools which a caller sees, and what waits there."""
    if sees(""):
        return found
    waiting = tuple(each for each in found.waiting if sees(each.pool))
    return StopsAnswer(
        stops=tuple(each for each in found.stops if not each.pool or sees(each.pool)),
        waiting=waiting,
        waiting_total=len(waiting),
        dollars_per_hour=sum(each.dollars_per_hour for each in waiting),
    )


async def read_stops(fleet: FleetClient, scope: ResumeRequest) -> StopsAnswer:
    """Return every stop in force, and what would begin if that of a scope ended."""
    data = await fleet.query(STOPS_QUERY, scope, timeout_seconds=STOPS_SECONDS_MAX)
    return decode_answer(StopsAnswer, data, STOPS_QUERY)


async def _stops(fleet: FleetClient) -> StopsAnswer:
    """Return the stops; where the pool-manager does not answer, as recorded."""
    with suppress(NavarchError):
        return await read_stops(fleet, ResumeRequest())
    watch = StopWatch(fleet.bus)
    await watch.read()
    stops = tuple(watch.state().at(datetime.now(UTC)).values())
    return StopsAnswer(stops=stops, waiting_total=-1)


async def _none() -> list[CurrentFailure]:
    return []


async def _orphans(fleet: FleetClient) -> list[InstanceRecord]:
    """The orphaned instances; none if the provisioner does not answer."""
    with suppress(NavarchError):
        return await read_instances(fleet, Query(state="orphaned", limit=INSTANCES_PAGE))
    return []
