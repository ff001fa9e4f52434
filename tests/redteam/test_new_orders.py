"""Stops, join tokens, identities and terminations are ordered by those alone who may order them."""

from typing import Final

import pytest

from schemas import permissions
from schemas.permissions import SERVICES
from tests.support.secured import Secured

AGENT: Final = "agent:training/n1"
NEW_NODE: Final = "bootstrap:training/n9"
USERS: Final = ("viewer", "scheduler", permissions.SINK_READER)
ORDERS: Final = (
    *(
        "stop",
        "resume",
        "identity-accept",
        "drill",
        "join",
        "join-revoke",
        "leave",
        "forget",
        "hardware-forget",
    ),
    *("hardware-add", "readmit", "sweep-now", "acknowledge-alert", "plugin-switch"),
)
ROOT: Final = "navarch.v1"


def forged(name: str) -> list[str]:
    """Return orders in a name, steps of sagas, and records by which machines end."""
    return [
        *(f"{ROOT}.order.{each}.{name}" for each in ORDERS),
        f"{ROOT}.query.propose-removal",
        f"{ROOT}.query.retire-node",
        f"{ROOT}.query.forget-plan",
        f"{ROOT}.saga.replace-n2-1.saga.started",
        f"{ROOT}.saga.replace-n2-1.terminate.started",
        "$KV.INSTANCES.training.n2",
        "$KV.NODES.training.n2",
        "$KV.HARDWARE.serial.1",
        "$KV.STOPS.fleet",
    ]


@pytest.mark.parametrize("who", [*USERS, AGENT, NEW_NODE])
async def test_an_outsider_orders_nothing(secured: Secured, who: str) -> None:
    """No order is accepted under its own name, an operator's or the gateway's."""
    names = (who.partition(":")[0], "operator", permissions.GATEWAY)
    wanted = [("publish", each) for each in dict.fromkeys(s for n in names for s in forged(n))]
    assert await secured.refused(who, wanted) == set(wanted)


@pytest.mark.parametrize("who", ["operator", permissions.POOL_ADMIN])
async def test_an_operator_orders_in_no_other_name(secured: Secured, who: str) -> None:
    """The name that is stored says who lifted a stop, or accepted an identity."""
    wanted = [
        ("publish", f"{ROOT}.order.{each}.{name}")
        for each in ORDERS
        for name in ("another", permissions.GATEWAY)
    ]
    assert await secured.refused(who, wanted) == set(wanted)


@pytest.mark.parametrize("who", SERVICES)
async def test_a_service_orders_no_termination_of_its_own(secured: Secured, who: str) -> None:
    """The pool-manager alone begins a step; no other service speaks for the step's performer."""
    steps = [f"{ROOT}.saga.replace-n2-1.terminate.started", f"{ROOT}.order.stop.operator"]
    steps += [f"{ROOT}.order.resume.{who}", f"{ROOT}.order.identity-accept.{who}"]
    steps += [f"{ROOT}.order.drill.{who}"]
    performer = f"{ROOT}.saga.replace-n2-1.terminate.succeeded"
    steps += [performer] if who not in ("pool-manager", "provisioner") else []
    wanted = [("publish", each) for each in steps if who != "pool-manager" or "saga" not in each]
    assert await secured.refused(who, wanted) == set(wanted)


async def test_a_host_invents_nothing_about_another(secured: Secured) -> None:
    """The server refuses conditions, identities, heartbeats and notices about another node."""
    other = f"{ROOT}.node.training.n2"
    wanted = [
        *(("publish", f"{other}.event.{each}") for each in permissions.node_events.FACTS_OF_AGENTS),
        *(("publish", each) for each in (f"{other}.telemetry", f"{other}.command.reboot")),
        ("publish", f"{ROOT}.node.training.n1.event.identity-changed"),
        ("publish", f"{ROOT}.node.training.n1.event.verdict"),
        *(("publish", f"{ROOT}.node.training.{each}.event.drill-started") for each in ("n1", "n2")),
        ("publish", "$KV.HEARTBEATS.training.n2"),
    ]
    assert await secured.refused(AGENT, wanted) == set(wanted)
