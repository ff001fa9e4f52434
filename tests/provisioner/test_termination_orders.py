"""An instance is terminated by an order alone, which names its IDs and who decided on it."""

import ast
import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from schemas.messages import encode
from schemas.node_records import HeartbeatRecord, NodeRecord
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_log_entries import SagaStarted, StepSucceeded
from schemas.saga_params import SagaParams
from schemas.settings import PoolSpec
from schemas.sweeps import SweepRequest
from schemas.termination_orders import Authority
from schemas.topology import HEARTBEATS, NODES, POOLS, SAGAS
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.planner.safety.removal_gates import GRANTED_MAX
from services.primitives.clock import SystemClock
from services.primitives.errors import Retry
from services.provisioner.instances.instance_decisions import (
    instances_of,
    intended_record,
    mark_listed,
    mark_terminating,
)
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Instance
from services.provisioner.providers.fake import FakeFault, FakeProvider
from services.provisioner.removal.removal_orders import is_absent, is_ordered, order_of
from services.provisioner.removal.sweeper import Sweeper
from services.provisioner.time_limits import TimeLimits
from services.saga.participant import StepFailure
from services.saga.saga_log import append
from tests.provisioner.provisioner_parts import (
    QUICK,
    answer_proposals,
    fake,
    launch,
    providers,
    provision,
    record_fleet,
    recorded,
    request,
    serve_pool_manager,
    start_step,
    step_handlers,
    steps,
    terminate,
)
from tests.provisioner.test_instance_decisions import instance, record
from tests.provisioner.test_respelled_ids import Reports

NOW: Final = datetime.now(UTC)
SAGA: Final = Authority(kind="saga", saga="replace-web-1", step="terminate", revision=7, at=NOW)
BEAT: Final = HeartbeatRecord(pool="web", node="web-1", time=NOW)
SPEC: Final = PoolSpec(provider="fake", instance_type="h100", min_nodes=1, max_nodes=9)
LAUNCH: Final = Authority(kind="launch", saga="scale-up-web-1", step="provision", at=NOW)
OWN: Final = ("services/provisioner/providers/", "services/provisioner/conformance/")
"""A provider's own calls, and the suite that checks a provider by itself."""
CALLERS: Final = {
    "services/provisioner/provider_client/provider_calls.py": "self._call('terminate')",
    "services/provisioner/removal/remover.py": "self._providers.get(order.provider).terminate",
}


def calls_of_terminate(path: Path) -> list[str]:
    """Return the calls of a method `terminate` in a file, but those of processes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [each.func for each in ast.walk(tree) if isinstance(each, ast.Call)]
    found = [each for each in calls if isinstance(each, ast.Attribute) and each.attr == "terminate"]
    named = [
        f"{ast.unparse(each.func)}({each.args[0].value!r})"
        for each in ast.walk(tree)
        if isinstance(each, ast.Call)
        and each.args
        and isinstance(each.args[0], ast.Constant)
        and each.args[0].value == "terminate"
        and ast.unparse(each.func).endswith("_call")
    ]
    return named + [ast.unparse(each) for each in found if "process" not in ast.unparse(each)]


def test_one_place_asks_a_provider_to_terminate() -> None:
    """The one caller has nothing else to ask with than an order."""
    found = {
        str(path): calls
        for path in sorted(Path("services").rglob("*.py"))
        if not str(path).startswith(OWN) and (calls := calls_of_terminate(path))
    }
    assert found == {path: [call] for path, call in CALLERS.items()}


@pytest.mark.parametrize(
    ("by", "known", "listed", "expected"),
    [
        pytest.param(SAGA, "i-1", ("i-1", {}), True, id="its own"),
        pytest.param(SAGA, "i-1", ("i-2", {}), False, id="another of its name"),
        pytest.param(SAGA, "i-1", ("i-1", {"name": "web-2"}), False, id="another node's"),
        pytest.param(SAGA, "i-1", ("i-1", {"name": "x", "fleet": ""}), True, id="without tags"),
        pytest.param(SAGA, "", ("i-2", {}), True, id="no ID is known"),
        pytest.param(LAUNCH, "", ("i-2", {}), True, id="a launch in doubt"),
        pytest.param(LAUNCH, "", ("i-2", {"token": "x"}), False, id="of another launch"),
        pytest.param(LAUNCH, "i-1", ("i-2", {}), True, id="a second answer"),
        pytest.param(LAUNCH, "", ("i-2", {"fleet": "x"}), False, id="another fleet's"),
    ],
)
def test_an_order_means_the_ids_that_it_names(
    by: Authority, known: str, listed: tuple[str, dict[str, str]], expected: bool
) -> None:
    """A launch in doubt has none, and means what carries its token."""
    going = mark_terminating(record("running", provider_id=known), NOW, by)
    provider_id, changes = listed
    one = instance(provider_id, **changes)
    assert is_ordered(going, one) is expected
    assert (provider_id in order_of(going, "fake", (one,)).provider_ids) is expected


@pytest.mark.parametrize(
    ("provider_id", "name", "expected"),
    [("i-1", "web-1", True), ("i-1", "web-2", False), ("i-2", "web-1", False)],
)
def test_an_order_means_the_machine_under_an_earlier_id(
    provider_id: str, name: str, expected: bool
) -> None:
    """The provider listed it by another ID when the order was given, and does no more."""
    going = mark_terminating(
        record("running", provider_id="arn:i-1", former_ids=("i-1",)), NOW, SAGA
    )
    one = instance(provider_id, name=name)
    assert is_ordered(going, one) is expected
    assert (provider_id in order_of(going, "fake", (one,)).provider_ids) is expected


def test_a_successor_of_the_same_name_is_another() -> None:
    """A machine that others make has no fleet, so a removal finds it by its ID alone."""
    made = launch()
    mine = record("terminating", provider_id="i-1", launch=replace(made, fleet=""))
    listed = (instance("i-1", fleet="", status="stopping"), instance("i-2", fleet=""))
    assert order_of(mine, "fake", listed[1:]).provider_ids == ("i-1",)
    assert instances_of(mine, listed) == [listed[0]]
    assert is_absent(mine, listed[1:], NOW, timedelta())


def test_the_first_order_counts_and_what_comes_late_is_added_to_it() -> None:
    """A second order changes nothing, and each attempt has the authority of the first."""
    going = mark_terminating(record("running"), NOW, SAGA)
    assert mark_terminating(going, NOW, LAUNCH) == going
    late = mark_listed(replace(going, state="terminated"), instance("i-2"), NOW)
    assert (late.authority, late.ordered) == (SAGA, ("i-2",))
    order = order_of(going, "fake", ())
    assert (order.authority, order.provider_ids, order.key) == (SAGA, ("i-1",), "web.web-1")


class Stopped:
    """A provider that lists one of its instances as stopped."""

    def __init__(self, real: FakeProvider, provider_id: str) -> None:
        self._real = real
        self._id = provider_id

    def __getattr__(self, name: str) -> Any:
        """Everything else passes."""
        return getattr(self._real, name)

    async def list(self) -> list[Instance]:
        """Return every instance."""
        found = await self._real.list()
        stopped = {True: "stopped", False: "running"}
        return [replace(each, status=stopped[each.provider_id == self._id]) for each in found]


class Lying:
    """A provider that accepts a removal and does nothing."""

    def __init__(self, real: FakeProvider) -> None:
        self._real = real
        self.lies = True

    def __getattr__(self, name: str) -> Any:
        """Everything else passes."""
        return getattr(self._real, name)

    async def terminate(self, provider_id: str) -> None:
        """Accept the removal, and perhaps do nothing."""
        if not self.lies:
            await self._real.terminate(provider_id)


def sweeping(
    bus: NatsBus,
    provider: FakeProvider,
    reports: Reports | None = None,
    limits: TimeLimits = QUICK,
) -> Sweeper:
    """Return one replica's sweep."""
    remover = steps(bus, provider, limits).remover
    return Sweeper(
        *(bus, SystemClock(), InstanceStore(bus), providers(provider), remover, limits),
        report=(reports or Reports()).update,
    )


async def test_an_order_is_carried_out_after_its_sagas_log_is_gone(bus: NatsBus) -> None:
    """The record keeps authority and IDs, and from it each further attempt is made."""
    await record_fleet(bus)
    provider = fake()
    await steps(bus, provider).provision(provision("web-1"))
    provider.inject_fault(FakeFault(call="terminate", kind="AUTH", times=5))
    wanted = terminate("web-1", "replace-web-1")
    await start_step(bus, wanted)
    await steps(bus, provider).terminate(wanted)
    await bus.admin(f"STREAM.PURGE.{SAGAS.name}", {})
    going = await recorded(bus)
    assert going.authority is not None
    assert (going.authority.kind, going.authority.saga) == ("saga", "replace-web-1")
    assert going.ordered == (going.provider_id,)
    sweeper = sweeping(bus, provider)
    for _ in range(6):
        await sweeper.sweep()
    assert (await recorded(bus)).state == "terminated"
    assert await provider.list() == []


async def test_the_log_is_read_again_before_an_order_is_used(bus: NatsBus) -> None:
    """A step that its saga has given up terminates nothing, and nor does one without a log."""
    await record_fleet(bus)
    provider = fake()
    await steps(bus, provider).provision(provision("web-1"))
    wanted = terminate("web-1", "replace-web-1")
    sequence = await start_step(bus, wanted)
    done = StepSucceeded(id="done", time=NOW, saga=wanted.saga, step="terminate")
    await append(bus, done, sequence, {})
    with pytest.raises(StepFailure, match="went on without it"):
        await steps(bus, provider).terminate(wanted)
    gone = dataclasses.replace(wanted, revision=sequence)
    await bus.admin(f"STREAM.PURGE.{SAGAS.name}", {})
    with pytest.raises(Retry, match="has no log"):
        await steps(bus, provider).terminate(gone)
    assert provider.calls("terminate") == []
    assert (await recorded(bus)).state == "running"


@pytest.mark.parametrize(
    ("gate", "expected"),
    [("heartbeats", "occupied"), ("observe", "observe"), ("no pool-manager", "unread")],
)
async def test_what_no_order_means_is_held_back_and_an_operator_may_end_it(
    bus: NatsBus, gate: str, expected: str
) -> None:
    """The plan shows authority, gate, age and price; a command is an authority of its own."""
    await record_fleet(bus)
    provider, reports = fake(dollars_per_hour=2.0), Reports()
    made = await provider.provision(request("web-1"))
    spec = PoolSpec(
        provider="fake",
        instance_type="h100",
        min_nodes=1,
        max_nodes=9,
        mode="observe" if gate == "observe" else "act",
    )
    if gate != "no pool-manager":
        await serve_pool_manager(bus, spec)
    if gate == "heartbeats":
        await bus.put(HEARTBEATS, "web.web-1", encode(BEAT))
    sweeper = sweeping(bus, provider, reports)
    for _ in range(2):
        await sweeper.sweep()
    [held] = sweeper.proposals.held.values()
    assert (held.gate, provider.calls("terminate")) == (expected, [])
    await sweeper.sweep(SweepRequest(terminate=(made.provider_id,), by="ada"))
    ended = await recorded(bus)
    assert ended.authority is not None
    assert (ended.state, ended.authority.kind, ended.authority.by) == (
        *("terminated", "operator", "ada"),
    )


async def test_a_machine_that_is_held_back_for_ten_minutes_is_reported(bus: NatsBus) -> None:
    """A held removal is shown with its gate and its price; one that is gone is shown no more."""
    await record_fleet(bus)
    provider = fake(dollars_per_hour=2.0)
    await provider.provision(request("web-1"))
    sweeper = sweeping(bus, provider)
    await sweeper.sweep()
    [key] = sweeper.proposals.held
    held = sweeper.proposals.held[key]
    sweeper.proposals._held[key] = type(held)(
        held.action, held.gate, held.reason, NOW - timedelta(minutes=11)
    )
    [failure] = sweeper.proposals.report([held.action])
    assert (failure.failure, "unread" in failure.reason) == ("removal-held", True)
    assert "$2 an hour" in failure.reason
    assert sweeper.proposals.report([]) == []


async def test_a_stopped_machine_beside_a_node_is_proposed_and_kept_in_its_record(
    bus: NatsBus,
) -> None:
    """Refused once, it is tried again from the record, without a second proposal."""
    await record_fleet(bus)
    await serve_pool_manager(bus)
    real = fake(idempotent=False)
    await steps(bus, real).provision(provision("web-1"))
    beside = await real.provision(request("web-1"))
    await bus.put(NODES, "web.web-1", encode(NodeRecord(pool="web", node="web-1", state="active")))
    provider = Stopped(real, beside.provider_id)
    real.inject_fault(FakeFault(call="terminate", kind="AUTH"))
    sweeper = sweeping(bus, provider)  # type: ignore[arg-type]
    await sweeper.sweep()
    [surplus] = (await recorded(bus)).surplus
    assert (surplus.provider_id, surplus.authority.kind) == (beside.provider_id, "proof")
    for _ in range(2):
        await sweeper.sweep()
    found = await recorded(bus)
    assert (found.state, found.surplus) == ("running", ())
    assert [each.provider_id for each in await real.list()] == [found.provider_id]


async def test_a_heartbeat_takes_the_order_of_a_proof_back_until_it_is_accepted(
    bus: NatsBus,
) -> None:
    """Refused at first, its machine is left to an operator once an agent beats under its name."""
    await record_fleet(bus)
    await serve_pool_manager(bus)
    provider = fake()
    await provider.provision(request("web-1"))
    provider.inject_fault(FakeFault(call="terminate", kind="AUTH"))
    sweeper = sweeping(bus, provider)
    await sweeper.sweep()
    going = await recorded(bus)
    assert (going.state, str(going.authority)[:5]) == ("terminating", "proof")
    await bus.put(
        HEARTBEATS, "web.web-1", encode(HeartbeatRecord(pool="web", node="web-1", time=NOW))
    )
    for _ in range(3):
        await sweeper.sweep()
    found = await recorded(bus)
    assert (found.state, found.ordered, found.authority) == ("orphaned", (), None)
    assert "an agent beats as web-1" in found.error
    assert (len(await provider.list()), len(provider.calls("terminate"))) == (1, 1)


async def test_what_a_provider_has_accepted_is_not_taken_back(bus: NatsBus) -> None:
    """A machine that takes minutes to go beats meanwhile; what lists it still is asked again."""
    await record_fleet(bus)
    await serve_pool_manager(bus)
    provider = fake()
    await provider.provision(request("web-1"))
    lying = Lying(provider)
    sweeper = sweeping(bus, lying)  # type: ignore[arg-type]
    await sweeper.sweep()
    await bus.put(
        HEARTBEATS, "web.web-1", encode(HeartbeatRecord(pool="web", node="web-1", time=NOW))
    )
    await sweeper.sweep()
    going = await recorded(bus)
    assert going.authority is not None
    assert (going.authority.kind, going.authority.accepted_at is None) == ("proof", False)
    lying.lies = False
    await sweeper.sweep()
    assert ((await recorded(bus)).state, await provider.list()) == ("terminated", [])


async def test_the_grants_of_a_pool_are_counted_over_restarts_of_the_pool_manager(
    bus: NatsBus,
) -> None:
    """The limit is in the store: a second pool-manager grants no second twenty."""
    await record_fleet(bus)
    await serve_pool_manager(bus)
    provider = fake()
    for number in range(GRANTED_MAX + 2):
        await provider.provision(request(f"web-{number + 1}"))
    pool = PoolRecord(name="web", spec=SPEC, desired=1, serial=99)
    await bus.put(POOLS, pool_key("web"), encode(pool))
    limits = dataclasses.replace(QUICK, sweep_removals_max=GRANTED_MAX - 1)
    first = sweeping(bus, provider, limits=limits)
    await first.sweep()
    await answer_proposals(bus, "again")
    second = sweeping(bus, provider)
    await second.sweep()
    assert len(await provider.list()) == 2
    assert {each.gate for each in second.proposals.held.values()} == {"rate"}


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        pytest.param("", "terminated", id="no log"),
        pytest.param("web-9", "terminated", id="its ID was given again, for another node"),
        pytest.param("web-1", "intended", id="its saga is open"),
    ],
)
async def test_a_launch_that_neither_nodes_nor_a_saga_knows_is_ended(
    bus: NatsBus, about: str, expected: str
) -> None:
    """A store that was set back has forgotten both, and left the record of the launch."""
    await record_fleet(bus)
    intended = intended_record("web", "web-1", launch(), "scale-up-web-1", NOW - timedelta(hours=1))
    await InstanceStore(bus).create(intended)
    if about:
        params = SagaParams(pool="web", new_node=about)
        begun = SagaStarted(
            id="begun", time=NOW, saga="scale-up-web-1", kind="scale-up", params=params
        )
        await append(bus, begun, 0, {})
    sweeper = sweeping(bus, fake())
    for _ in range(2):
        await sweeper.sweep()
    assert (await recorded(bus)).state == expected


class Ahead(SystemClock):
    """A clock that is ahead."""

    by = timedelta()

    def now(self) -> datetime:
        """Return the time by then."""
        return super().now() + self.by


async def test_a_provider_that_lies_for_hours_ends_the_machine_at_last(bus: NatsBus) -> None:
    """Each removal is accepted and none happens: it leaks after half an hour, and goes."""
    await record_fleet(bus)
    lying, clock = Lying(fake()), Ahead()
    calls = providers(lying)  # type: ignore[arg-type]
    limits = dataclasses.replace(QUICK, leak_after_seconds=1800.0, accepted_within_seconds=0.1)
    parts = step_handlers(bus, calls, limits, clock=clock)
    await parts.provision(provision("web-1"))
    await start_step(bus, terminate("web-1"))
    await parts.terminate(terminate("web-1"))
    sweeper = Sweeper(bus, clock, InstanceStore(bus), calls, parts.remover, limits)
    states = []
    for minutes in (10, 31, 240):
        clock.by = timedelta(minutes=minutes)
        await sweeper.sweep()
        states.append((await recorded(bus)).state)
    assert states == ["terminating", "leaked", "leaked"]
    lying.lies = False
    await sweeper.sweep()
    found = await recorded(bus)
    assert found.authority is not None
    assert (found.state, found.authority.kind, await lying.list()) == ("terminated", "saga", [])
