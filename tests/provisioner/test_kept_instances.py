"""A machine that was refused for its hardware is kept while the next one is launched."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from schemas.enums import DENIED_HARDWARE, NOT_ADMITTED
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.saga_log_entries import SagaUnwinding, StepFailed
from schemas.termination_orders import Authority
from schemas.topology import NODES, POOLS
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.removal.kept_instances import KEPT_FOR, KEPT_MAX, keep, kept_seconds
from services.provisioner.removal.sweeper import Sweeper
from services.saga.saga_log import append
from tests.provisioner.provisioner_parts import (
    FLEET,
    QUICK,
    command,
    fake,
    launch,
    providers,
    provision,
    recorded,
    start_step,
    steps,
)

NOW = datetime(2026, 5, 5, tzinfo=UTC)
BY = Authority(kind="launch", saga="scale-up-web-9")
RUNNING = InstanceRecord(
    pool="web",
    instance="web-9",
    state="running",
    provider="fake",
    token="t",
    launch=launch(),
    intended_at=NOW,
)


def kept_record(name: str, at: datetime = NOW) -> InstanceRecord:
    """One that is kept since then."""
    found = keep(msgspec.structs.replace(RUNNING, instance=name), (), at, BY)
    assert found is not None
    return found


def test_so_many_of_a_pool_are_kept_and_no_more() -> None:
    """A pool keeps a limited number; ended ones do not count, and one that goes already, goes."""
    others = [kept_record(f"web-{number}") for number in range(KEPT_MAX)]
    assert keep(RUNNING, others[1:], NOW, BY) is not None
    assert keep(RUNNING, others, NOW, BY) is None
    assert keep(RUNNING, others, NOW + KEPT_FOR, BY) is not None
    assert keep(msgspec.structs.replace(RUNNING, state="terminating"), (), NOW, BY) is None


@pytest.mark.parametrize(
    ("minutes", "admitted", "left"),
    [(0, None, 1200), (5, None, 900), (20, None, 0), (5, -1, 900), (5, 1, 0)],
)
def test_it_is_kept_until_a_node_of_its_pool_is_admitted(
    minutes: int, admitted: int | None, left: float
) -> None:
    """A node that was admitted before proves nothing; after 20 minutes it goes in any case."""
    at = None if admitted is None else NOW + timedelta(minutes=admitted)
    assert kept_seconds(kept_record("web-1"), at, NOW + timedelta(minutes=minutes)) == left


async def refused(bus: NatsBus, node: str, error: str) -> None:
    """The log of a launch whose node was refused when it registered."""
    wanted = provision(node)
    sequence = await start_step(bus, wanted)
    register = command(wanted.saga, "register", {})
    sequence = await start_step(bus, register, sequence)
    about = {"time": NOW, "saga": wanted.saga, "step": "register", "reason": "bad"}
    failed = StepFailed(id=f"{wanted.saga}.register.failed", error=error, **about)
    sequence = await append(bus, failed, sequence, {})
    unwinding = SagaUnwinding(id=f"{wanted.saga}.unwinding", **about)
    sequence = await append(bus, unwinding, sequence, {})
    await start_step(bus, wanted, sequence, undo=True)


@pytest.mark.parametrize("error", [DENIED_HARDWARE, NOT_ADMITTED])
async def test_the_undo_of_a_launch_keeps_what_was_refused_for_its_hardware(
    bus: NatsBus, error: str
) -> None:
    """A launch's undo keeps refused hardware, also when its command is delivered again.

    The sweep removes it once another is admitted.
    """
    await bus.put(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))
    provider, kept = fake(), error == DENIED_HARDWARE
    parts = steps(bus, provider)
    await parts.provision(provision("web-1"))
    await refused(bus, "web-1", error)
    for _ in range(2):
        await parts.provision_undo(provision("web-1"))
    assert [each.name for each in await provider.list()] == ["web-1"] * kept
    assert (await recorded(bus)).state == ("terminating" if kept else "terminated")

    store = InstanceStore(bus)
    sweeper = Sweeper(bus, SystemClock(), store, providers(provider), parts.remover, QUICK)
    plan, _ = await sweeper.sweep()
    assert [each.waits_seconds > 0 for each in plan.differences] == [True] * kept
    admitted = NodeRecord(pool="web", node="web-2", admitted_at=datetime.now(UTC))
    await bus.put(NODES, "web.web-2", encode(admitted))
    await sweeper.sweep()
    assert await provider.list() == []
