"""The two tools that change the fleet: one plans and changes nothing, one confirms a plan."""

from datetime import datetime
from typing import Any

import msgspec

from schemas.dry_run import DryRun
from schemas.duration import decode_hook
from schemas.node_records import node_key
from schemas.operations import CHANGE, Change
from schemas.operator_requests import Request
from schemas.pool_records import pool_key
from schemas.topology import NODES, POOLS
from services.mcp_server.change_plans import ChangePlan, expiry, require_current
from services.mcp_server.query_tools import visible_node, visible_pool
from services.mcp_server.tool_arguments import Confirmation, PlannedChange
from services.mcp_server.tool_caller import ToolAccess
from services.primitives.errors import NavarchError


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a plan to the caller that may confirm it. Nothing was changed."""

    plan: DryRun
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
    change = CHANGE[asked.verb]
    pool = await _pool_of(access, change, asked.name)
    revision = await _revision(access, asked.verb, pool, asked.name)
    request = _request(change, asked)
    shown = await access.fleet.dry_run(pool, asked.verb, request)
    if not shown.accepted:
        return PlanAnswer(plan=shown, next="It would be refused: nothing can be confirmed.")
    plan = ChangePlan(
        verb=asked.verb,
        pool=pool,
        about=asked.name,
        request=request,
        revision=revision,
        by=access.caller.name,
        expires=expiry(access.now()),
    )
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
    if not access.caller.sees(plan.pool):
        # One person may have tokens of several rights, and give an assistant the least.
        raise NavarchError(f"{access.caller.name} may not see pool {plan.pool}")
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


async def _pool_of(access: ToolAccess, change: Change, name: str) -> str:
    """Return the pool to ask; NavarchError if there is none that the caller may see."""
    if change.subject == "pool":
        return (await visible_pool(access, name)).name
    return (await visible_node(access, name)).pool


def _request(change: Change, asked: PlannedChange) -> Request:
    """Return what would be requested; a field that this change does not have is refused."""
    given = {"nodes": asked.nodes, "mode": asked.mode or None, "timeout": asked.timeout or None}
    fields: dict[str, Any] = {name: each for name, each in given.items() if each is not None}
    if change.subject == "node":
        fields |= {"node": asked.name, "reason": asked.reason}
    try:
        found: Request = msgspec.convert(fields, change.request, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        raise NavarchError(f"{change.name}: {error}") from error
    return found


async def _revision(access: ToolAccess, verb: str, pool: str, about: str) -> int:
    """Of the record that a change is about; 0: there is none any more."""
    bucket, key = (
        (POOLS, pool_key(pool))
        if CHANGE[verb].subject == "pool"
        else (NODES, node_key(pool, about))
    )
    entry = await access.fleet.bus.get(bucket, key)
    return entry.revision if entry is not None else 0
