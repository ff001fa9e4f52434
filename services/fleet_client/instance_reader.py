"""Reads the records of instances, which the provisioner answers for."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from schemas.fleet_queries import Query
from schemas.instance_records import InstanceRecord
from services.fleet_client.cost_report import SPAN_MAX, CostReport, cost_report
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.query_answers import decode_answer

PROVISIONER: Final = "provisioner"
INSTANCES_PAGE: Final = 500
"""Records of some kilobytes each: a page must fit one message of the bus."""


async def read_instances(fleet: FleetClient, query: Query) -> list[InstanceRecord]:
    """Return all records of a query `instances`."""
    items = await fleet.pages("instances", query, who=PROVISIONER)
    return [decode_answer(InstanceRecord, each, "instances", PROVISIONER) for each in items]


async def fleet_cost(
    fleet: FleetClient,
    pool: str,
    start: datetime,
    now: datetime,
    label: str,
    sees: Callable[[str], bool],
) -> CostReport:
    """Return what a pool's instances, or all that the caller sees, have cost since a time."""
    query = Query(pool=pool, terminated=True, limit=INSTANCES_PAGE)
    records = [each for each in await read_instances(fleet, query) if sees(each.pool)]
    return cost_report(records, max(start, now - SPAN_MAX), now, label)
