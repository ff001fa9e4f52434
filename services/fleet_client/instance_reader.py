"""Reads the records of instances, which the provisioner answers for."""

from typing import Final

from schemas.fleet_queries import Query
from schemas.instance_records import InstanceRecord
from services.fleet_client.fleet_client import FleetClient, decode_answer

PROVISIONER: Final = "provisioner"
INSTANCES_PAGE: Final = 500
"""Records of some kilobytes each: a page must fit one message of the bus."""


async def read_instances(fleet: FleetClient, query: Query) -> list[InstanceRecord]:
    """All records of a query `instances`."""
    items = await fleet.pages("instances", query, who=PROVISIONER)
    return [decode_answer(InstanceRecord, each, "instances", PROVISIONER) for each in items]
