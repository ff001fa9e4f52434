"""A fleet whose pools machines join with tokens, on a server that asks for credentials."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from agent.fleet_join import JoinPlace, join
from agent.settings import AgentConfig
from schemas import subjects
from schemas.join_tokens import (
    JOIN,
    JOIN_TOKENS,
    JoinAnswer,
    JoinRecord,
    JoinRequest,
    JoinToken,
    decode_token,
)
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.permissions import bootstrap_inbox
from schemas.pool_records import FLEET_KEY, FleetRecord, PoolRecord, pool_key
from schemas.settings import AgentSettings, FleetBudgetSpec, NatsSettings, PoolSpec
from schemas.topology import POOLS
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.port import Bus
from services.cli.nats_config_files import SIGNING_FILE
from services.fleet_client.fleet_client import FleetClient
from services.pool_manager.node_adoption import NodeAdoption
from services.pool_manager.node_rebuilder import NodeRebuilder
from services.pool_manager.pool_store import Store
from services.primitives.clock import SystemClock
from services.provisioner.bootstrap.enrollment_endpoint import EnrollmentEndpoint
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.joins.join_endpoints import JoinEndpoints
from services.provisioner.provider_client.provider import Instance, Provider
from services.provisioner.providers.enrolled import EnrolledProvider
from services.provisioner.providers.slurm import node_instance
from services.provisioner.removal.orphans import Orphans
from services.provisioner.removal.sweeper import Sweeper
from services.workload_systems.slurm_output import SlurmNode
from tests.provisioner.provisioner_parts import QUICK, fake, providers, steps
from tests.support.secured import Secured, nats_config, serving_secured

SPEC = PoolSpec(provider="machines", min_nodes=0, max_nodes=9, nodes="enrolled", gpu_count=8)


@dataclass
class Site:
    """A fleet with a pool that machines join, and its operator."""

    secured: Secured
    bus: Bus
    operator: FleetClient
    store: InstanceStore
    directory: Path

    def place(self, name: str) -> JoinPlace:
        """Return the files of a machine's agent."""
        return JoinPlace(self.directory / name / "agent.env", self.directory / name / "state")

    async def token(self, node: str = "gpu-01", pool: str = "gpu", **more: object) -> JoinToken:
        """Have the operator make a token."""
        asked = JoinRequest(pool=pool, nodes=(node,), **more)
        answer = msgspec.json.decode(await self.operator.order(JOIN, asked), type=JoinAnswer)
        return decode_token(answer.tokens[0].token)

    async def join(self, token: JoinToken, machine: str, clock: timedelta = timedelta()) -> str:
        """Have a machine join; `clock`: by how much its clock is ahead."""

        async def connect(config: AgentConfig, file: Path, seconds: float) -> Bus:
            settings = NatsSettings(url=self.secured.url, creds_file=str(file))
            box = bootstrap_inbox(config.pool, config.node)
            options = ConnectOptions(settings=settings, name="new", inbox_prefix=box)
            return await NatsBus.connect(options, seconds_max=seconds)

        return await join(token, self.place(machine), connect, lambda: datetime.now(UTC) + clock)

    async def tokens(self) -> list[JoinRecord]:
        """Return the tokens as the operator sees them."""
        data = await self.operator.query(JOIN_TOKENS, msgspec.defstruct("Nothing", ())())
        return msgspec.json.decode(data, type=list[JoinRecord])

    async def node(self, name: str = "gpu-01", pool: str = "gpu") -> NodeRecord | None:
        """Return a node's record."""
        return await Store(self.bus, FleetBudgetSpec()).fresh_node(pool, name)

    @asynccontextmanager
    async def sweeping(self, provider: Provider) -> AsyncIterator[Sweeper]:
        """Sweep as the provisioner, with its own credentials."""
        bus = await NatsBus.connect(self.secured.options("provisioner"))
        remover = steps(bus, provider).remover
        yield Sweeper(
            *(bus, SystemClock(), InstanceStore(bus), providers(provider), remover, QUICK),
            lambda _: True,
            fleet_name="f",
        )
        await bus.close()


@asynccontextmanager
async def join_site(tmp_path: Path) -> AsyncIterator[Site]:
    """Serve as the provisioner and the pool-manager, each with its own credentials."""
    directory = nats_config(tmp_path / "bus")
    async with serving_secured(directory, tmp_path / "nats") as secured:
        admin = await NatsBus.connect(secured.options("admin"))
        await admin.put(POOLS, FLEET_KEY, encode(FleetRecord(id="f-00000a")))
        specs = {"gpu": "enrolled", "web": "launched", "slurm": "adopted"}
        for name, nodes in specs.items():
            spec = msgspec.structs.replace(SPEC, nodes=nodes)
            record = PoolRecord(name=name, spec=spec, desired=0)
            await admin.put(POOLS, pool_key(name), encode(record))
        manager = await NatsBus.connect(secured.options("pool-manager"))
        watching = await _serve_pool_manager(manager)
        bus = await NatsBus.connect(secured.options("provisioner"))
        store = await _serve_provisioner(bus, secured, tmp_path)
        person = await NatsBus.connect(secured.options("operator"))
        operator = FleetClient(person, user="operator")
        yield Site(secured, admin, operator, store, tmp_path)
        watching.cancel()
        for each in (person, bus, manager, admin):
            await each.close()


async def _serve_pool_manager(bus: Bus) -> asyncio.Task[None]:
    store = Store(bus, FleetBudgetSpec())
    watching = asyncio.create_task(store.nodes.run())

    async def reconcile(_: str) -> None:
        await store.nodes.caught_up()

    rebuilder = NodeRebuilder(bus, SystemClock(), store)
    adoption = NodeAdoption(bus, SystemClock(), store, rebuilder.last_events, reconcile, 0.0)
    await bus.serve("pool-manager", "", adoption.endpoints())
    return watching


async def _serve_provisioner(bus: Bus, secured: Secured, place: Path) -> InstanceStore:
    store, clock = InstanceStore(bus), SystemClock()
    nats = NatsSettings(url=secured.url, agent_signing_file=str(secured.directory / SIGNING_FILE))
    agent = AgentSettings()
    orphans = Orphans(bus, clock, store, steps(bus, fake()).remover)
    joins = JoinEndpoints(bus, clock, store, orphans, BootstrapTemplates(nats, agent, place))

    async def no_pod(_: str, __: str) -> str:
        raise AssertionError

    enrollment = EnrollmentEndpoint(bus, clock, store, agent, nats, no_pod, joins.use)
    await bus.serve("provisioner", "", {subjects.ENROLL: enrollment.answer, **joins.endpoints})
    return store


class Partition(EnrolledProvider):
    """Lists the nodes of a partition, as the provider `slurm` does."""

    def __init__(self) -> None:
        self.name = "machines"
        self.nodes = ["gpu-01", "gpu-02"]

    async def list(self) -> list[Instance]:
        """Return the nodes that the partition has now."""
        return [node_instance(slurm_node(each), "slurm") for each in self.nodes]


def slurm_node(name: str) -> SlurmNode:
    """Return an idle node."""
    return SlurmNode(
        name=name, address="", hostname=name, state=frozenset({"idle"}), user="", reason=""
    )
