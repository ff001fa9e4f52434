"""A provider that lists nodes under other IDs costs none of them."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from schemas import subjects
from schemas.enums import NodeState
from schemas.fleet_queries import CurrentFailure
from schemas.machine_identity import MachineIdentity, NodeMachines
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.pool_events import InstanceIdCorrected, pool_codec
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import PoolSpec
from schemas.topology import EVENTS, INSTANCES, NODES, POOLS
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Instance
from services.provisioner.providers.fake import FakeProvider
from services.provisioner.removal.sweeper import Sweeper
from services.saga.participant import StepFailure
from tests.provisioner.provisioner_parts import (
    QUICK,
    fake,
    providers,
    provision,
    record_fleet,
    recorded,
    request,
    serve_pool_manager,
    steps,
    terminate,
)

NODES_COUNT = 5
NOW = datetime.now(UTC)
SPEC = PoolSpec(provider="fake", instance_type="h100", min_nodes=1, max_nodes=9)
Respell = Callable[[int, list[str]], str]


class Respelled:
    """A provider that lists instances under other IDs, and takes those."""

    def __init__(self, real: FakeProvider, respell: Respell | None = None) -> None:
        self._real = real
        self._real_ids: dict[str, str] = {}
        self.respell = respell
        self.answers = ""
        """The ID that a launch answers with; empty: its own."""

    def __getattr__(self, name: str) -> Any:
        """Everything else passes."""
        return getattr(self._real, name)

    async def list(self) -> list[Instance]:
        """Return every instance, under its new ID."""
        found = await self._real.list()
        ids = [each.provider_id for each in found]
        if self.respell is not None:
            self._real_ids = {self.respell(at, ids): each for at, each in enumerate(ids)}
            shown = zip(found, self._real_ids, strict=True)
            return [replace(each, provider_id=spelled) for each, spelled in shown]
        return found

    async def provision(self, asked: Any) -> Instance:
        """Launch one, and answer with an ID."""
        made = await self._real.provision(asked)
        return replace(made, provider_id=self.answers or made.provider_id)

    async def terminate(self, provider_id: str) -> None:
        """End what is listed under this ID; another one is not known."""
        if self.respell is None:
            await self._real.terminate(provider_id)
        else:
            await self.list()
            await self._real.terminate(self._real_ids.get(provider_id, "none"))


class Exchanged(Respelled):
    """The list gives each node another one's ID for a time; calls take the true ones."""

    lists_left = 0

    async def list(self) -> list[Instance]:
        """Return every instance, with IDs exchanged while any such list is left."""
        self.respell = (lambda at, ids: ids[at - 1]) if self.lists_left > 0 else None
        self.lists_left -= 1
        return await super().list()

    async def terminate(self, provider_id: str) -> None:
        """End the instance of this ID."""
        await self._real.terminate(provider_id)


class Canonical(Respelled):
    """The same, and it declares that IDs differ in nothing by their case."""

    @staticmethod
    def canonical_id(provider_id: str) -> str:
        """Return its lower case."""
        return provider_id.lower()


class Reports:
    """Return what a sweep reports to operators."""

    def __init__(self) -> None:
        self.found: dict[str, list[CurrentFailure]] = {}

    def update(self, observer: str, found: Any) -> None:
        """Keep the last report."""
        self.found[observer] = list(found)

    @property
    def kinds(self) -> list[str]:
        """Return what fails now."""
        return [each.failure for each in self.found.get("instance IDs", [])]


async def in_service(bus: NatsBus, node: str, state: NodeState = "active") -> None:
    """Record a node."""
    record = NodeRecord(pool="web", node=node, state=state, admitted_at=NOW)
    await bus.put(NODES, f"web.{node}", encode(record))


def sweeping(bus: NatsBus, provider: Any, reports: Reports) -> Sweeper:
    """Return one replica's sweep."""
    parts = steps(bus, provider)
    return Sweeper(
        *(bus, SystemClock(), InstanceStore(bus), providers(provider), parts.remover, QUICK),
        report=reports.update,
    )


async def corrections(bus: NatsBus) -> list[InstanceIdCorrected]:
    """Return the events about corrected IDs."""
    stored = await bus.read(EVENTS.name, subjects.pool_event_wildcard("instance-id-corrected"))
    found = [pool_codec.decode(each.data) for each in stored]
    return [each for each in found if isinstance(each, InstanceIdCorrected)]


@pytest.mark.parametrize(
    "respell",
    [
        pytest.param(lambda at, ids: ids[at].upper(), id="case"),
        pytest.param(lambda at, ids: f"instance/{ids[at]}", id="prefix"),
        pytest.param(lambda at, ids: f"arn:aws:ec2:eu-1:1:instance/{ids[at]}", id="form"),
        pytest.param(lambda at, ids: f"new-{at}-{len(ids)}", id="unknown"),
        pytest.param(lambda at, ids: ids[at - 1], id="another node's"),
    ],
)
async def test_nodes_in_service_stay_under_every_spelling(bus: NatsBus, respell: Respell) -> None:
    """Records are corrected, and that a provider's answers have changed is reported."""
    await record_fleet(bus)
    real = fake()
    provider, reports = Respelled(real), Reports()
    parts = steps(bus, provider)  # type: ignore[arg-type]
    for number in range(1, NODES_COUNT + 1):
        await parts.provision(provision(f"web-{number}"))
        await in_service(bus, f"web-{number}")
    provider.respell = respell
    sweeper = sweeping(bus, provider, reports)
    for _ in range(3):
        await sweeper.sweep()
    assert real.calls("terminate") == []
    shown = {each.name: each.provider_id for each in await provider.list()}
    made = {each.name: each.provider_id for each in await real.list()}
    # A list in which each machine has the ID of another one is wrong: their records stay.
    swapped = set(shown.values()) == set(made.values())
    for name, provider_id in (made if swapped else shown).items():
        record = await recorded(bus, name)
        assert (record.state, record.provider_id) == ("running", provider_id)
    assert len(await corrections(bus)) == (0 if swapped else NODES_COUNT)
    assert set(reports.kinds) == {"instance-unclear" if swapped else "provider-ids-changed"}


async def test_a_class_that_declares_a_form_has_its_ids_compared_in_it(bus: NatsBus) -> None:
    """Then another spelling is no difference at all."""
    await record_fleet(bus)
    provider, reports = Canonical(fake(), lambda at, ids: ids[at].upper()), Reports()
    await steps(bus, provider).provision(provision("web-1"))  # type: ignore[arg-type]
    await in_service(bus, "web-1")
    plan, _ = await sweeping(bus, provider, reports).sweep()
    assert plan.differences == ()


async def test_a_launch_that_is_answered_with_an_unknown_id_keeps_its_node(bus: NatsBus) -> None:
    """One node's record is corrected; that alone is no change of the provider."""
    await record_fleet(bus)
    real = fake()
    provider, reports = Respelled(real), Reports()
    provider.answers = "i-unknown"
    await steps(bus, provider).provision(provision("web-1"))  # type: ignore[arg-type]
    await in_service(bus, "web-1")
    await sweeping(bus, provider, reports).sweep()
    assert (await recorded(bus)).provider_id == "fake-000001"
    assert [each.previous for each in await corrections(bus)] == ["i-unknown"]
    assert (await recorded(bus)).former_ids == ("i-unknown",)
    assert (reports.kinds, real.calls("terminate")) == ([], [])


async def test_a_launch_that_is_answered_with_another_nodes_id_takes_nothing_from_it(
    bus: NatsBus,
) -> None:
    """The answer is in doubt; the launch finds its own machine in the list."""
    await record_fleet(bus)
    real = fake()
    provider = Respelled(real)
    parts = steps(bus, provider)  # type: ignore[arg-type]
    await parts.provision(provision("web-1"))
    provider.answers = "fake-000001"
    await parts.provision(provision("web-2"))
    assert (await recorded(bus, "web-2")).provider_id == "fake-000002"
    assert real.calls("terminate") == []


@pytest.mark.parametrize("swept", [True, False])
async def test_a_node_whose_id_is_listed_as_anothers_takes_nothing_from_it(
    bus: NatsBus, swept: bool
) -> None:
    """Both launches were answered wrongly: no record has the ID of the machine that is in service.

    The saga of the second node ends what the list shows as its own, and not what its record says,
    also where no sweep has seen it before.
    """
    await record_fleet(bus)
    real, reports = fake(), Reports()
    provider = Respelled(real)
    parts = steps(bus, provider)  # type: ignore[arg-type]
    provider.answers = "i-unknown"
    await parts.provision(provision("web-1"))
    provider.answers = "fake-000001"
    await parts.provision(provision("web-2"))
    await in_service(bus, "web-1")
    assert (await recorded(bus, "web-2")).provider_id == "fake-000001"
    if swept:
        await sweeping(bus, provider, reports).sweep()
    assert (await recorded(bus, "web-2")).id_doubted == swept
    await parts.terminate(terminate("web-2"))
    assert real.calls("terminate") == ["fake-000002"]
    assert (await recorded(bus, "web-2")).state == "terminated"
    await sweeping(bus, provider, reports).sweep()
    assert (await recorded(bus)).provider_id == "fake-000001"


@pytest.mark.parametrize("undone", [False, True])
async def test_a_list_that_exchanges_ids_has_no_other_node_ended(
    bus: NatsBus, undone: bool
) -> None:
    """An ID under the node's name that another record has means that node.

    So for a node that leaves (seed 93500619) and for a launch that is undone (seed 61000699),
    whose order means what the list shows with its token.
    """
    await record_fleet(bus)
    real = fake()
    provider = Exchanged(real)
    parts = steps(bus, provider)  # type: ignore[arg-type]
    for name in ("web-1", "web-2"):
        await parts.provision(provision(name))
        await in_service(bus, name)
    provider.lists_left = 5
    if undone:
        await parts.provision_undo(provision("web-2"))
    else:
        await parts.terminate(terminate("web-2"))
    # A slow machine gives up before the list is right: the sweep goes on.
    await sweeping(bus, provider, Reports()).sweep()
    assert set(real.calls("terminate")) == {"fake-000002"}
    assert [each.name for each in await provider.list()] == ["web-1"]


async def test_the_undo_of_a_launch_with_another_nodes_id_leaves_that_node_alone(
    bus: NatsBus,
) -> None:
    """No list shows its own machine, so it gives up; what it gives up is its own."""
    await record_fleet(bus)
    real = fake(list_lag_calls=1000)
    provider = Respelled(real)
    parts = steps(bus, provider)  # type: ignore[arg-type]
    await parts.provision(provision("web-1"))
    provider.answers = "fake-000001"
    with pytest.raises(StepFailure):
        await parts.provision(provision("web-2", timeout_seconds=0.5))
    await parts.provision_undo(provision("web-2"))
    assert "fake-000001" not in real.calls("terminate")


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        pytest.param({}, "", id="nothing"),
        pytest.param({"address": "10.0.0.7"}, "", id="an address that none has"),
        pytest.param({"provider_id": "fake-000009"}, "", id="an ID that none has"),
        pytest.param({"provider_id": "fake-000001"}, "fake-000002", id="the ID of the first"),
    ],
)
async def test_of_two_machines_of_one_name_that_is_the_node_whose_agent_says_so(
    bus: NatsBus, reported: dict[str, str], expected: str
) -> None:
    """The other one goes by proof; where none is known to be the node, an operator is asked."""
    await record_fleet(bus)
    real, reports = fake(idempotent=False), Reports()
    await steps(bus, real).provision(provision("web-1"))
    await real.provision(request("web-1"))
    await in_service(bus, "web-1")
    heard = MachineIdentity(since=NOW, heard_at=NOW, registered_at=NOW, **reported)
    node = NodeRecord(
        pool="web", node="web-1", state="active", identity=NodeMachines(machine=heard)
    )
    await bus.put(NODES, "web.web-1", encode(node))
    await serve_pool_manager(bus)
    sweeper = sweeping(bus, real, reports)
    for _ in range(2):
        await sweeper.sweep()
    assert reports.kinds == ([] if expected else ["instance-unclear"])
    assert real.calls("terminate") == [expected] * bool(expected)


async def test_a_node_that_is_removed_while_its_ids_change_does_not_live_on(bus: NatsBus) -> None:
    """An order means an ID that is no longer listed: what is listed instead is proposed."""
    await record_fleet(bus)
    await serve_pool_manager(bus)
    real = fake()
    provider, reports = Respelled(real), Reports()
    limits = dataclasses.replace(QUICK, accepted_within_seconds=0.1)
    parts = steps(bus, provider, limits)  # type: ignore[arg-type]
    await parts.provision(provision("web-1"))
    await in_service(bus, "web-1", "leaving")
    provider.respell = lambda at, ids: f"new-{ids[at]}"
    await parts.terminate(terminate("web-1"))
    sweeper = sweeping(bus, provider, reports)
    await sweeper.sweep()
    assert [each.gate for each in sweeper.proposals.held.values()] == ["occupied"]
    await in_service(bus, "web-1", "terminated")
    for _ in range(2):
        await sweeper.sweep()
    assert ((await recorded(bus)).state, await provider.list()) == ("terminated", [])


class Renamed:
    """A provider that lists the instances of a node under the name of another, or under both."""

    def __init__(self, real: FakeProvider, *, both: bool) -> None:
        self._real = real
        self._both = both

    def __getattr__(self, name: str) -> Any:
        """Everything else passes."""
        return getattr(self._real, name)

    def canonical_id(self, provider_id: str) -> str:
        """Return the form that lists have."""
        return provider_id.rpartition("/")[2]

    async def list(self) -> list[Instance]:
        """Return every instance."""
        found = await self._real.list()
        new = [replace(each, name="web-7") for each in found if each.name == "web-2"]
        return [each for each in found if self._both or each.name != "web-2"] + new


@pytest.mark.parametrize("both", [False, True], ids=["renamed", "listed twice"])
@pytest.mark.parametrize("spelling", ["{}", "arn:aws:ec2/{}"])
@pytest.mark.parametrize("heard", [False, True], ids=["ID not reported", "ID reported"])
async def test_a_healthy_machine_that_is_listed_under_a_free_name_stays(
    bus: NatsBus, spelling: str, *, both: bool, heard: bool
) -> None:
    """Changed tags prove nothing: the records, or its agent, say that it is another node's."""
    await record_fleet(bus)
    await serve_pool_manager(bus)
    pool = PoolRecord(name="web", spec=SPEC, desired=2, serial=99)
    await bus.put(POOLS, pool_key("web"), encode(pool))
    real, store = fake(), InstanceStore(bus)
    for name in ("web-1", "web-2"):
        await steps(bus, real).provision(provision(name))
        await in_service(bus, name)
    made = (await recorded(bus, "web-2")).provider_id
    if heard:
        await bus.delete(INSTANCES, "web.web-2")
        heard_at = datetime.now(UTC) + timedelta(minutes=5)  # after the machine was made
        known = MachineIdentity(since=NOW, heard_at=heard_at, registered_at=NOW, provider_id=made)
        node = NodeRecord(
            pool="web", node="web-2", state="active", identity=NodeMachines(machine=known)
        )
        await bus.put(NODES, "web.web-2", encode(node))
    else:
        named = spelling.format(made)
        await store.change("web.web-2", lambda found: found and replace(found, provider_id=named))
    sweeper = sweeping(bus, Renamed(real, both=both), Reports())  # type: ignore[arg-type]
    for _ in range(4):
        await sweeper.sweep()
    assert (len(await real.list()), real.calls("terminate")) == (2, [])
