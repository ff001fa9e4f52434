"""The two tools that change the fleet: one plans and changes nothing, one confirms a plan."""

from datetime import datetime
from typing import Final

import msgspec

from schemas.dry_run import DryRun, DryRunRequest
from schemas.duration import decode_hook
from schemas.messages import encode
from schemas.node_records import node_key
from schemas.operator_requests import DrainRequest, NodeRequest, ScaleRequest
from schemas.pool_records import pool_key
from schemas.topology import NODES, POOLS
from services.fleet_client.fleet_client import Request
from services.fleet_client.query_answers import decode_answer
from services.mcp_server.change_plans import ChangePlan, expiry, require_current
from services.mcp_server.query_tools import visible_node, visible_pool
from services.mcp_server.tool_arguments import Confirmation, PlannedChange
from services.mcp_server.tool_caller import ToolAccess
from services.primitives.errors import NavarchError

DRAINS: Final = ("drain", "replace", "terminate")


class ScalePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what `scale` would do."""

    pool: str
    desired: int
    """Now."""
    nodes: int
    """The desired size that was asked for."""
    min_nodes: int
    max_nodes: int
    accepted: bool
    reason: str = ""
    """Why it would be refused."""


_Planned = tuple[ChangePlan, DryRun | ScalePlan]


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a plan to the caller that may confirm it. Nothing was changed."""

    plan: DryRun | ScalePlan
    """The dry run: whether it would be accepted, its gates, and its steps."""
    token: str = ""
    """For confirm_change; empty: it would be refused, so there is nothing to confirm."""
    expires: datetime | None = None
    next: str


class ChangeDone(msgspec.Struct, frozen=True, kw_only=True):
    """A change that the fleet accepted."""

    verb: str
    pool: str
    about: str
    answer: msgspec.Struct
    next: str = ""


async def plan_change(access: ToolAccess, asked: PlannedChange) -> PlanAnswer:
    """Plan a change: its dry run with every gate and step, and a token. Nothing is changed.

    Show the plan to the person who decides; pass the token to confirm_change if they agree.
    """
    _check_fields(asked)
    planned = _scale if asked.verb == "scale" else _about_node
    plan, shown = await planned(access, asked)
    if not shown.accepted:
        return PlanAnswer(plan=shown, next="It would be refused: nothing can be confirmed.")
    return PlanAnswer(
        plan=shown,
        token=access.plans.add(plan),
        expires=plan.expires,
        next="Nothing was changed. If the person who decides agrees, call confirm_change once.",
    )


async def confirm_change(access: ToolAccess, asked: Confirmation) -> ChangeDone:
    """Carry out a plan that plan_change made. It needs the role operator.

    The token is valid once, for five minutes, and while the node or pool is as it was.
    """
    plan = access.plans.take(asked.token, access.caller.name, access.now())
    require_current(plan, await _revision(access, plan.verb, plan.pool, plan.about))
    answer = await access.caller.send(plan.pool, plan.verb, plan.request)
    saga = getattr(answer, "saga", "")
    return ChangeDone(
        verb=plan.verb,
        pool=plan.pool,
        about=plan.about,
        answer=answer,
        next=f"why {saga} shows its progress" if saga else "",
    )


def _check_fields(asked: PlannedChange) -> None:
    if (asked.nodes is None) == (asked.verb == "scale"):
        raise NavarchError("`nodes` is the size that scale sets: no other change has it")
    if asked.verb not in DRAINS and (asked.mode or asked.timeout):
        raise NavarchError("`mode` and `timeout` are for drain, replace and terminate")


async def _about_node(access: ToolAccess, asked: PlannedChange) -> _Planned:
    node = await visible_node(access, asked.name)
    revision = await _revision(access, asked.verb, node.pool, node.id)
    fields: dict[str, str | None] = {"node": node.id, "reason": asked.reason}
    kind: type[NodeRequest] = NodeRequest
    if asked.verb in DRAINS:
        kind, fields = DrainRequest, fields | {"mode": asked.mode, "timeout": asked.timeout or None}
    try:
        request = msgspec.convert(fields, kind, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        raise NavarchError(str(error)) from error
    query = DryRunRequest(verb=asked.verb, node=node.id, request=msgspec.Raw(encode(request)))
    shown = decode_answer(DryRun, await access.fleet.query("dry-run", query), "dry-run")
    return _plan(access, asked.verb, node.pool, node.id, request, revision), shown


async def _scale(access: ToolAccess, asked: PlannedChange) -> _Planned:
    pool = await visible_pool(access, asked.name)
    revision = await _revision(access, asked.verb, pool.name, pool.name)
    nodes = asked.nodes or 0
    allowed = pool.min_nodes <= nodes <= pool.max_nodes
    limits = f"between min_nodes {pool.min_nodes} and max_nodes {pool.max_nodes}"
    shown = ScalePlan(
        pool=pool.name,
        desired=pool.desired,
        nodes=nodes,
        min_nodes=pool.min_nodes,
        max_nodes=pool.max_nodes,
        accepted=allowed,
        reason="" if allowed else f"{nodes} is not {limits}",
    )
    request = ScaleRequest(nodes=nodes)
    return _plan(access, asked.verb, pool.name, pool.name, request, revision), shown


def _plan(
    access: ToolAccess, verb: str, pool: str, about: str, request: Request, revision: int
) -> ChangePlan:
    return ChangePlan(
        verb=verb,
        pool=pool,
        about=about,
        request=request,
        revision=revision,
        by=access.caller.name,
        expires=expiry(access.now()),
    )


async def _revision(access: ToolAccess, verb: str, pool: str, about: str) -> int:
    """Of the record that a change is about; 0: there is none any more."""
    bucket, key = (POOLS, pool_key(pool)) if verb == "scale" else (NODES, node_key(pool, about))
    entry = await access.fleet.bus.get(bucket, key)
    return entry.revision if entry is not None else 0
