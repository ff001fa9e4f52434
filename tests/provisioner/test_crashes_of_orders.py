"""A provisioner killed between any two calls of an order's life carries it out once, or not at all.

The points are: the command is received, the order is written, the proof is read again, the provider
is called, its acceptance is written, the absence is confirmed.
"""

from datetime import UTC, datetime

import pytest

from schemas.messages import encode
from schemas.node_records import HeartbeatRecord, NodeRecord
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import PoolSpec
from schemas.topology import HEARTBEATS, LEASES, NODES, POOLS
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.providers.fake import FakeProvider
from services.provisioner.removal.sweeper import Sweeper
from tests.provisioner.provisioner_parts import (
    QUICK,
    Killed,
    Life,
    Mortal,
    fake,
    providers,
    provision,
    record_fleet,
    request,
    serve_pool_manager,
    start_step,
    steps,
    terminate,
)

pytestmark = pytest.mark.slow

MOMENTS_MAX = 200
EFFECTS = (*Mortal.EFFECTS, "request", "entries", "read")
SPEC = PoolSpec(provider="fake", instance_type="h100", min_nodes=1, max_nodes=9)


def sweeper_on(bus: NatsBus, provider: FakeProvider, life: Life) -> Sweeper:
    """Return the sweep of a process that dies at the end of its life."""
    mortal, at = Mortal(bus, life, EFFECTS), Mortal(provider, life, EFFECTS)
    remover = steps(mortal, at).remover
    calls = providers(at)
    return Sweeper(mortal, SystemClock(), InstanceStore(mortal), calls, remover, QUICK)


async def killed_in_sweep(bus: NatsBus, provider: FakeProvider, moment: int) -> bool:
    """Sweep in a process that dies at this moment; return False where it was done before."""
    life = Life(moment)
    try:
        await sweeper_on(bus, provider, life).sweep()
    except* Killed:
        pass
    return 0 < moment <= life.points


async def prepared(bus: NatsBus) -> FakeProvider:
    """Return a provider, beside a pool that has named many nodes."""
    await record_fleet(bus)
    await serve_pool_manager(bus)
    pool = PoolRecord(name="web", spec=SPEC, desired=1, serial=999)
    await bus.put(POOLS, pool_key("web"), encode(pool))
    return fake(idempotent=False)


@pytest.mark.parametrize("beats", [False, True], ids=["silent", "heard after the crash"])
async def test_killed_at_each_call_of_an_order_by_proof(bus: NatsBus, *, beats: bool) -> None:
    """The machine goes; but one that is heard before its provider was asked stays for good."""
    provider = await prepared(bus)
    moment, stayed, went = 0, 0, 0
    while moment < MOMENTS_MAX:
        moment += 1
        node = f"web-{moment}"
        made = await provider.provision(request(node))
        killed = await killed_in_sweep(bus, provider, moment)
        left = made.provider_id in {each.provider_id for each in await provider.list()}
        if beats:
            now = datetime.now(UTC)
            beat = HeartbeatRecord(pool="web", node=node, time=now)
            await bus.put(HEARTBEATS, f"web.{node}", encode(beat))
        for _ in range(3):
            await sweeper_on(bus, provider, Life(0)).sweep()
        listed = {each.provider_id for each in await provider.list()}
        assert (made.provider_id in listed) is (beats and left), moment
        assert provider.calls("terminate").count(made.provider_id) <= 2
        stayed, went = stayed + (beats and left), went + (not left)
        for each in listed:
            await provider.terminate(each)
        await bus.delete(HEARTBEATS, f"web.{node}")
        await bus.delete(LEASES, "pool-manager.removals.web")  # or the limit of a pool is reached
        await sweeper_on(bus, provider, Life(0)).sweep()
        if not killed:
            break
    assert (moment > 10, went > 0, bool(stayed) is beats) == (True, True, True)
    assert moment < MOMENTS_MAX


async def test_killed_at_each_call_of_a_sagas_order(bus: NatsBus) -> None:
    """The command is delivered again: its machine goes, and the neighbour stays."""
    provider = await prepared(bus)
    await steps(bus, provider).provision(provision("web-900"))
    active = NodeRecord(pool="web", node="web-900", state="active")
    await bus.put(NODES, "web.web-900", encode(active))
    moment, killed = 0, True
    while killed and moment < MOMENTS_MAX:
        moment += 1
        node = f"web-{moment}"
        await steps(bus, provider).provision(provision(node))
        life = Life(moment)
        mortal, at = Mortal(bus, life), Mortal(provider, life)
        wanted = terminate(node)
        await start_step(bus, wanted)
        killed = False
        try:
            await steps(mortal, at).terminate(wanted)
        except Killed:
            killed = True
            await steps(bus, provider).terminate(wanted)
        await sweeper_on(bus, provider, Life(0)).sweep()
        assert [each.name for each in await provider.list()] == ["web-900"]
        found = await InstanceStore(bus).get(f"web.{node}")
        assert found is not None
        assert found.authority is not None
        assert (found.state, found.authority.kind) == ("terminated", "saga")
        assert len(found.ordered) == 1
    assert 5 < moment < MOMENTS_MAX
