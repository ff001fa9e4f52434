"""The provisioner's steps are tested: errors, zones, leaks, and the service on the real bus."""

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from schemas import subjects
from schemas.enums import ProviderErrorKind
from schemas.fleet_queries import Page, Query
from schemas.messages import encode
from schemas.node_records import HeartbeatRecord
from schemas.pool_events import InstanceLeaked, pool_codec
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.saga_log_entries import (
    SagaStarted,
    StepFailed,
    StepStarted,
    StepSucceeded,
    UndoSucceeded,
)
from schemas.saga_params import SagaParams
from schemas.step_data import BootstrapInputs, ProvisionOutputs
from schemas.subjects import pool_event_wildcard
from schemas.topology import EVENTS, HEARTBEATS, INSTANCES, POOLS, SAGAS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.primitives.errors import Retry
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.providers.fake import FakeFault
from services.provisioner.service import answer_instances
from services.saga.participant import StepFailure
from services.saga.saga_log import append
from tests.provisioner.provisioner_parts import (
    FLEET,
    Held,
    answer_to,
    command,
    fake,
    provision,
    record_fleet,
    recorded,
    running,
    start_step,
    steps,
    terminate,
    until,
)


@pytest.mark.usefixtures("hopeless")
@pytest.mark.parametrize("kind", ["CAPACITY", "QUOTA", "UNSUPPORTED", "AUTH", "INVALID"])
async def test_an_error_that_persists_fails_the_step(bus: NatsBus, kind: str) -> None:
    """The step fails at once with the kind; a redelivery fails the same way and asks no more."""
    provider = fake(faults=(FakeFault(call="provision", kind=kind),))
    for _ in range(2):
        with pytest.raises(StepFailure) as failure:
            await steps(bus, provider).provision(provision("web-1"))
        assert failure.value.error == kind
    assert len(provider.calls("provision")) == 1
    record = await recorded(bus, "web-1")
    assert (record.state, record.error.split(":")[0]) == ("terminated", kind)


@pytest.mark.parametrize("kind", ["TRANSIENT", "THROTTLE", "NETWORK"])
async def test_an_error_that_passes_is_tried_again(bus: NatsBus, kind: str) -> None:
    """The same token is used until it succeeds; the tries are counted in the record."""
    provider = fake(faults=(FakeFault(call="provision", kind=kind, times=3),))
    outputs = await steps(bus, provider).provision(provision("web-1"))
    record = await recorded(bus, "web-1")
    assert record.provider_id == outputs.provider_id
    assert (record.state, record.attempts, record.error) == ("running", 3, "")


async def test_the_provider_s_own_wait_is_kept(bus: NatsBus) -> None:
    """A wait longer than the step has left ends the step instead of sleeping past it."""
    provider = fake(faults=(FakeFault(call="provision", kind="THROTTLE", retry_after=60.0),))
    with pytest.raises(StepFailure) as failure:
        await steps(bus, provider).provision(provision("web-1"))
    assert failure.value.error == "THROTTLE"


@pytest.mark.usefixtures("hopeless")
async def test_a_zone_out_of_capacity_gives_way_to_the_next(bus: NatsBus) -> None:
    """Every zone is tried, in order, before the step fails for want of capacity."""
    provider = fake(faults=(FakeFault(call="provision", kind="CAPACITY", zone="a", times=2),))
    outputs = await steps(bus, provider).provision(provision("web-1", zones=("a", "b")))
    assert outputs.zone == "b"
    with pytest.raises(StepFailure):
        await steps(bus, provider).provision(provision("web-2", zones=("a",)))


async def test_a_provider_that_is_not_configured_fails_the_step(bus: NatsBus) -> None:
    """The failure says which providers there are."""
    with pytest.raises(StepFailure, match="known: fake") as failure:
        await steps(bus, fake()).provision(provision("web-1", saga="x").__class__(
            saga="x", step="provision", id="x", inputs={
                "pool": "web", "node": "web-1",
                "launch": {"fleet": "f", "provider": "nowhere", "instance_type": "t"},
            },
        ))  # fmt: skip
    assert failure.value.error == "INVALID"


async def test_unusable_inputs_fail_the_step(bus: NatsBus) -> None:
    """A command that cannot be read unwinds its saga instead of lying about."""
    with pytest.raises(StepFailure) as failure:
        await steps(bus, fake()).terminate(command("x", "terminate", {"pool": 7}))
    assert failure.value.error == "INVALID"


async def test_an_unknown_instance_is_gone_already(bus: NatsBus) -> None:
    """Terminating it is a success, once and again."""
    await record_fleet(bus)
    provider = fake()
    for _ in range(2):
        await steps(bus, provider).terminate(terminate("web-7"))
    assert provider.calls("terminate") == []
    assert (await recorded(bus, "web-7")).state == "terminated"


async def test_an_instance_whose_record_is_lost_is_terminated(bus: NatsBus) -> None:
    """A missing record does not prove that an instance is gone: each provider is searched."""
    await record_fleet(bus)
    provider = fake()
    made = await steps(bus, provider).provision(provision("web-1"))
    await bus.purge(f"KV_{INSTANCES.name}", ">")
    await steps(bus, provider).terminate(terminate("web-1"))
    assert await provider.list() == []
    record = await recorded(bus, "web-1")
    assert (record.state, record.provider_id) == ("terminated", made.provider_id)


async def test_a_record_that_is_lost_during_the_removal_ends_nothing(bus: NatsBus) -> None:
    """The removal goes on until the provider no longer lists the instance."""
    await record_fleet(bus)
    provider = fake(faults=(FakeFault(call="terminate", kind="THROTTLE", times=3),))
    await steps(bus, provider).provision(provision("web-1"))
    removing = asyncio.create_task(steps(bus, provider).terminate(terminate("web-1")))
    while not provider.calls("terminate"):
        await asyncio.sleep(0)
    await bus.purge(f"KV_{INSTANCES.name}", ">")
    await removing
    assert await provider.list() == []


async def test_a_removal_ends_where_the_log_of_its_saga_is_gone(bus: NatsBus) -> None:
    """The store was set back to when the instance was in service, and it is to stay there."""
    await record_fleet(bus)
    provider = fake(faults=(FakeFault(call="terminate", kind="THROTTLE", times=1000),))
    made = await steps(bus, provider).provision(provision("web-1"))
    order = terminate("web-1")
    params = SagaParams(pool="web", node="web-1")
    began = SagaStarted(
        id="began", time=datetime.now(UTC), saga=order.saga, kind="scale-down", params=params
    )
    ordered = StepStarted(id=order.id, time=began.time, saga=order.saga, step=order.step)
    await append(bus, began, 0, {})
    await append(bus, ordered, 1, {})
    removing = asyncio.create_task(steps(bus, provider).terminate(order))
    while len(provider.calls("terminate")) < 3:
        await asyncio.sleep(0)
    await bus.purge(SAGAS.name, subjects.saga_tree(order.saga))
    with pytest.raises(Retry, match="has no log"):
        await removing
    assert [made.provider_id] == [each.provider_id for each in await provider.list()]


async def test_without_record_and_fleet_id_nothing_is_concluded(bus: NatsBus) -> None:
    """POOLS is lost as well: the step waits until the pool-manager has recorded the fleet again."""
    with pytest.raises(Retry):
        await steps(bus, fake()).terminate(terminate("web-1"))


async def test_a_list_that_lags_does_not_end_a_removal_too_soon(bus: NatsBus) -> None:
    """A launch in doubt is gone only when the list can be believed."""
    provider = fake(
        idempotent=False,
        list_lag_calls=2,
        list_lag_seconds=0.2,
        faults=(FakeFault(call="provision", kind="TRANSIENT", after_success=True),),
    )
    await steps(bus, provider).provision_undo(provision("web-0"))
    with pytest.raises(StepFailure):
        await steps(bus, provider).provision(provision("web-1", timeout_seconds=0.01))
    await steps(bus, provider).provision_undo(provision("web-1"))
    assert await provider.list() == []


@pytest.mark.parametrize("admitted", [True, False])
async def test_the_undo_of_a_launch_whose_node_was_admitted_leaves_an_orphan(
    bus: NatsBus, *, admitted: bool
) -> None:
    """The store was restored from a backup older than the admission: its agent has read that."""
    provider = fake()
    await steps(bus, provider).provision(provision("web-1"))
    now = datetime.now(UTC)
    beat = HeartbeatRecord(
        pool="web", node="web-1", time=now, admitted_at=now if admitted else None
    )
    await bus.put(HEARTBEATS, "web.web-1", encode(beat))

    await steps(bus, provider).provision_undo(provision("web-1"))

    record = await recorded(bus, "web-1")
    assert record.state == ("orphaned" if admitted else "terminated")
    assert bool(provider.calls("terminate")) is not admitted
    if admitted:
        assert "navarch sweep --adopt web-1" in record.error


async def test_the_undo_of_a_launch_from_before_the_restore_leaves_an_orphan(bus: NatsBus) -> None:
    """The log of such a launch is as old as the backup, and its agent may be away."""
    provider = fake()
    await steps(bus, provider).provision(provision("web-1"))
    fleet = FleetRecord(id=FLEET, restored_at=datetime.now(UTC))
    await bus.put(POOLS, FLEET_KEY, encode(fleet))
    await steps(bus, provider).provision_undo(provision("web-1"))
    assert (await recorded(bus, "web-1")).state == "orphaned"
    assert provider.calls("terminate") == []


async def test_what_cannot_be_terminated_is_a_leak_published_once(bus: NatsBus) -> None:
    """A leak is recorded and published once; the removal goes on until it succeeds."""
    provider = fake(dollars_per_hour=2.5)
    await steps(bus, provider).provision(provision("web-1"))
    provider.inject_fault(FakeFault(call="terminate", kind="TRANSIENT", times=1000))
    removing = asyncio.create_task(steps(bus, provider).terminate(terminate("web-1")))

    async def is_leaked() -> bool:
        return (await recorded(bus, "web-1")).state == "leaked"

    await until(is_leaked)
    tries = len(provider.calls("terminate"))

    async def tried_on() -> bool:
        return len(provider.calls("terminate")) > tries + 2

    await until(tried_on)
    stored = await bus.read(EVENTS.name, pool_event_wildcard("instance-leaked"))
    events = [pool_codec.decode(each.data) for each in stored]
    assert [type(each) for each in events] == [InstanceLeaked]
    assert isinstance(events[0], InstanceLeaked)
    assert (events[0].instance, events[0].dollars_per_hour) == ("web-1", 2.5)
    provider.clear_faults()
    await removing
    assert (await recorded(bus, "web-1")).state == "terminated"


@pytest.mark.parametrize(("kind", "leaks"), [("INVALID", 1), ("AUTH", 0)])
async def test_a_termination_that_is_refused_once_is_a_leak_only_if_it_is_refused_for_good(
    bus: NatsBus, kind: ProviderErrorKind, leaks: int
) -> None:
    """A login that expires during a wave of removals is not one alert for each machine."""
    provider = fake(faults=(FakeFault(call="terminate", kind=kind),))
    await steps(bus, provider).provision(provision("web-1"))
    await steps(bus, provider).terminate(terminate("web-1"))
    stored = await bus.read(EVENTS.name, pool_event_wildcard("instance-leaked"))
    assert leaks == len(stored)


async def test_the_service_performs_the_steps_of_a_saga(bus: NatsBus) -> None:
    """Commands appended to a saga's log are answered there: provision, bootstrap, terminate."""
    provider = fake()
    async with running(bus, provider):
        saga = "replace-web-1"
        sequence = await start_step(bus, provision("web-2", saga))
        done, sequence = await answer_to(bus, saga, sequence)
        assert isinstance(done, StepSucceeded)
        outputs = msgspec.convert(done.outputs, ProvisionOutputs)
        assert (outputs.provider, outputs.provider_id) == ("fake", "fake-000001")
        inputs = BootstrapInputs(pool="web", node="web-2")
        sequence = await start_step(bus, command(saga, "bootstrap", inputs), sequence)
        done, sequence = await answer_to(bus, saga, sequence)
        assert isinstance(done, StepSucceeded)
        sequence = await start_step(bus, terminate("web-2", saga), sequence)
        done, sequence = await answer_to(bus, saga, sequence)
        assert isinstance(done, StepSucceeded)
    assert await provider.list() == []


@pytest.mark.usefixtures("hopeless")
async def test_the_service_undoes_a_provision(bus: NatsBus) -> None:
    """The undo's command is answered once no instance exists."""
    provider = fake(faults=(FakeFault(call="provision", kind="CAPACITY"),))
    async with running(bus, provider):
        sequence = await start_step(bus, provision("web-1", "s"))
        failed, sequence = await answer_to(bus, "s", sequence)
        assert isinstance(failed, StepFailed)
        assert failed.error == "CAPACITY"
        sequence = await start_step(bus, provision("web-1", "s"), sequence, undo=True)
        undone, _ = await answer_to(bus, "s", sequence)
        assert isinstance(undone, UndoSucceeded)


async def test_a_launch_goes_on_once_its_lost_record_is_there_again(bus: NatsBus) -> None:
    """INSTANCES is lost or set back after the launch: a step that failed would undo it."""
    provider = fake()
    await steps(bus, provider).provision(provision("web-1"))
    lost = await recorded(bus, "web-1")
    wanted = command("s", "bootstrap", BootstrapInputs(pool="web", node="web-1"))
    await bus.delete(INSTANCES, "web.web-1")
    with pytest.raises(Retry, match="the sweep records it again"):
        await steps(bus, provider).bootstrap(wanted)
    before = msgspec.structs.replace(lost, state="intended", provider_id="")
    await bus.put(INSTANCES, "web.web-1", encode(before))
    with pytest.raises(Retry, match="the sweep records it again"):
        await steps(bus, provider).bootstrap(wanted)
    await bus.put(INSTANCES, "web.web-1", encode(lost))
    await steps(bus, provider).bootstrap(wanted)
    await steps(bus, provider).terminate(terminate("web-1"))
    with pytest.raises(StepFailure, match="no running instance"):
        await steps(bus, provider).bootstrap(wanted)


async def test_a_launch_that_is_undone_while_it_waits_for_a_list_is_not_requested(
    bus: NatsBus,
) -> None:
    """The undo has found nothing, and says so."""
    provider = fake()
    held = Held(provider, "list")
    launching = asyncio.create_task(steps(bus, held).provision(provision("web-1")))
    await held.entered.wait()
    await steps(bus, provider).provision_undo(provision("web-1"))
    assert (await recorded(bus, "web-1")).state == "terminated"
    held.go_on.set()
    with pytest.raises(StepFailure):
        await launching
    assert provider.calls("provision") == []


async def test_a_broker_restart_in_a_launch_costs_nothing(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """The answer is recorded and appended once the broker is back; nothing is made twice."""
    provider = fake(idempotent=False)
    held = Held(provider)
    async with running(bus, held):
        sequence = await start_step(bus, provision("web-1", "s"))
        await held.entered.wait()
        await server.restart()
        held.go_on.set()
        done, _ = await answer_to(bus, "s", sequence)
    assert isinstance(done, StepSucceeded)
    assert len(await provider.list()) == 1
    assert (await recorded(bus, "web-1")).state == "running"


async def test_two_replicas_answer_each_command_once(bus: NatsBus) -> None:
    """Twenty launches at two replicas make twenty instances."""
    provider = fake(idempotent=False)
    async with running(bus, provider), running(bus, provider, replica="provisioner-2"):
        sequences = [await start_step(bus, provision(f"web-{n}")) for n in range(20)]
        for number, sequence in enumerate(sequences):
            done, _ = await answer_to(bus, f"scale-up-web-{number}", sequence)
            assert isinstance(done, StepSucceeded)
    assert sorted(each.name for each in await provider.list()) == sorted(
        f"web-{number}" for number in range(20)
    )


async def test_a_removal_that_its_saga_has_left_behind_ends(bus: NatsBus) -> None:
    """The step stops trying, so that the saga's next command is not held up; the sweep goes on."""
    provider = fake()
    await steps(bus, provider).provision(provision("web-1"))
    provider.inject_fault(FakeFault(call="terminate", kind="TRANSIENT", times=1000))
    wanted = terminate("web-1", "s")
    sequence = await start_step(bus, wanted)
    removing = asyncio.create_task(steps(bus, provider).terminate(wanted))

    async def tried() -> bool:
        return len(provider.calls("terminate")) > 1

    await until(tried)
    await start_step(bus, wanted, sequence, undo=True)
    with pytest.raises(StepFailure, match="the sweep keeps removing"):
        await removing


async def test_the_instances_can_be_asked_for_in_pages(bus: NatsBus) -> None:
    """Pages follow one another by key; what is gone is shown only when asked for."""
    provider = fake()
    for number in range(5):
        await steps(bus, provider).provision(provision(f"web-{number}"))
    await steps(bus, provider).terminate(terminate("web-3"))
    answer = answer_instances(InstanceStore(bus))

    async def ask(query: Query) -> list[str]:
        names: list[str] = []
        while True:
            page = msgspec.json.decode(await answer(msgspec.json.encode(query), {}), type=Page)
            names += [msgspec.json.decode(each)["instance"] for each in page.items]
            if not page.next:
                return names
            query = msgspec.structs.replace(query, after=page.next)

    assert await ask(Query(limit=2)) == ["web-0", "web-1", "web-2", "web-4"]
    assert await ask(Query(limit=2, terminated=True)) == [f"web-{n}" for n in range(5)]
    assert await ask(Query(pool="other")) == []
    assert await ask(Query(node="web-2")) == ["web-2"]
    some = Query(names=("web-1", "web-3", "web-9"), limit=1, terminated=True)
    assert await ask(some) == ["web-1", "web-3"]
