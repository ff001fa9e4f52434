"""GET: what was measured and kept: samples, a pool over time, evidence; and the health policy."""

from collections.abc import Sequence
from typing import Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery

from schemas.evidence_bundles import EvidenceBundle, EvidenceDescription
from schemas.fleet_queries import PolicyView, Query
from schemas.instance_records import InstanceRecord
from schemas.topology import EVIDENCE
from services.fleet_client.evidence_lookup import find_evidence, outages
from services.fleet_client.fleet_client import decode_answer
from services.fleet_client.pool_history import SPAN_MAX, PoolHistory, pool_history
from services.fleet_client.use_reader import GpuReadings, node_samples
from services.gateway.event_routes import start_of
from services.gateway.fleet_routes import (
    PROVISIONER,
    Caller,
    Fleet,
    Histories,
    Now,
    visible_node,
    visible_pool,
)
from services.gateway.problems import PROBLEMS, ROOT, not_found
from services.primitives.errors import BusError, NavarchError


@get(f"{ROOT}/nodes/{{name:str}}/samples", tags=["nodes"], responses=PROBLEMS)
async def get_node_samples(
    fleet: Fleet, principal: Caller, name: FromPath[str]
) -> list[GpuReadings]:
    """Get a node's stored samples of the last fifteen minutes, oldest first."""
    view = await visible_node(fleet, principal, name)
    return await node_samples(fleet.bus, view.pool, view.id)


@get(f"{ROOT}/nodes/{{name:str}}/evidence", tags=["nodes"], responses=PROBLEMS)
async def get_node_evidence(
    fleet: Fleet,
    principal: Caller,
    histories: Histories,
    name: FromPath[str],
    saga: FromQuery[str] = "",
) -> EvidenceBundle:
    """Get the evidence of a node's latest outage, or of the one that a saga ended."""
    async with histories:
        try:
            found = await find_evidence(fleet.bus, name, saga)
        except BusError:
            raise
        except NavarchError as error:
            raise not_found("evidence about", name, f"{ROOT}/evidence") from error
    if not principal.sees(found.pool):
        raise not_found("evidence about", name, f"{ROOT}/evidence")
    return found


@get(f"{ROOT}/evidence", tags=["nodes"], responses=PROBLEMS)
async def list_evidence(fleet: Fleet, principal: Caller) -> list[EvidenceDescription]:
    """List the outages of which evidence is kept, oldest first."""
    kept = outages(await fleet.bus.objects(EVIDENCE))
    return [about for _, about in kept if principal.sees(about.pool)]


@get(f"{ROOT}/pools/{{name:str}}/history", tags=["pools"], responses=PROBLEMS)
async def get_pool_history(
    fleet: Fleet, principal: Caller, now: Now, name: FromPath[str], since: FromQuery[str] = "24h"
) -> PoolHistory:
    """Get a pool's instances and their cost over time; seven days at most."""
    pool = await visible_pool(fleet, principal, name)
    items = await fleet.pages("instances", Query(pool=pool.name, terminated=True), who=PROVISIONER)
    records = (decode_answer(InstanceRecord, each, "instances", PROVISIONER) for each in items)
    start = max(start_of(since, now), now - SPAN_MAX)
    return pool_history(pool.name, records, start, now)


@get(f"{ROOT}/policy", tags=["policy"], responses=PROBLEMS)
async def get_policy(fleet: Fleet) -> PolicyView:
    """Get the health policy in force: its rules in order, of which the first match decides."""
    answer = await fleet.query("policy", Query(), who="health-monitor")
    return decode_answer(PolicyView, answer, "policy", "health-monitor")


HISTORY_ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    *(get_node_samples, get_node_evidence, list_evidence, get_pool_history, get_policy),
)
