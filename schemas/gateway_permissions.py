"""Permissions of the HTTP gateway on the bus: what its callers may read, and ask in their names."""

from collections.abc import Iterable, Sequence
from typing import Final

from schemas import subjects
from schemas.account_rules import Account, Rules
from schemas.operations import ORDERS
from schemas.topology import (
    ALERTS,
    ANSWERS,
    EVENTS,
    EVIDENCE,
    HEALTH,
    INSTANCES,
    NODES,
    POOLS,
    SAGAS,
    TELEMETRY,
)

QUERIES: Final = (
    *("nodes", "node", "pools", "sagas", "budget", "dry-run", "instances", "offerings", "policy"),
    *("hardware", "job-nodes", "why"),
    *(each.name for each in ORDERS if each.is_query),
)
COMMANDS: Final = ("diagnose", "logs", "ping")
"""Of agents."""


def gateway(
    user: str, box: str, services: Sequence[str], facts: Iterable[str], bytes_max: int
) -> Rules:
    """`box`: where it gets answers; `facts`: the events that it publishes."""
    streams = [
        *(EVENTS.name, SAGAS.name, TELEMETRY.name),
        *(
            each.stream().name
            for each in (ALERTS, ANSWERS, POOLS, NODES, HEALTH, INSTANCES, EVIDENCE)
        ),
    ]
    return Rules(
        account=Account.USERS,
        publish=(
            *(f"$JS.API.STREAM.INFO.{each}" for each in streams),
            *(f"$JS.API.DIRECT.GET.{each}" for each in streams),
            *(f"$JS.API.DIRECT.GET.{each}.>" for each in streams),
            *(subjects.query(each) for each in QUERIES),
            *(subjects.failures_query(each) for each in services),
            *(subjects.service_logs(each) for each in services),
            subjects.GATEWAY_LOGS,
            *(subjects.order(each.name, user) for each in ORDERS if not each.is_query),
            f"{subjects.ROOT}.pool.*.request.*.{user}",
            *(f"{subjects.ROOT}.node.*.*.command.{each}" for each in COMMANDS),
            *facts,
            box,
        ),
        subscribe=(
            *(box, subjects.NODE_EVENTS, subjects.POOL_EVENTS, subjects.FLEET_EVENTS),
            *(subjects.SAGAS, f"$KV.{NODES.name}.>", f"$KV.{POOLS.name}.>"),
            subjects.GATEWAY_LOGS,
        ),
        answers=True,
        payload_bytes_max=bytes_max,
    )
