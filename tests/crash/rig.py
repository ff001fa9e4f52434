"""A fleet of real processes that can be struck as soon as something is stored.

A nats-server, every service as `python -m services.<name>`, and either scripted agents with the
`fake` provider, or real agents with the `local` provider. The rig follows what is stored; an armed
function runs before the follower reads on, about a millisecond after its moment.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord
from schemas.operations import REQUESTS
from schemas.pool_events import FACTS, NodeReplaced, PoolEvent, pool_codec
from schemas.settings import NatsSettings
from schemas.topology import EVENTS, INSTANCES, NODES, SAGAS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.primitives.errors import BusError
from services.primitives.free_ports import LOOPBACK
from services.provisioner.providers.local import stop_all
from tests.crash import consistency
from tests.crash.consistency import DONE, Difference, Evidence, ExpectedSaga
from tests.crash.fleet_settings import POOL, settings_of
from tests.crash.fleet_shape import REPLACED, TOOK_EFFECT, Moment, Shape
from tests.crash.provider_truth import FakeProviderTruth, LocalProviderTruth, Provider
from tests.crash.replica_process import ROOT, Replica
from tests.crash.scripted_agents import GONE, ScriptedAgents, fault_of, write_fault
from tests.crash.workload_system import Workload, serving
from tests.support.cluster import Cluster
from tests.support.fork_server import ForkServer
from tests.support.network import Network
from tests.support.releases import set_up_by
from tests.support.settling import busy

SERVICES: Final = ("pool-manager", "health-monitor", "provisioner", "notifier", "metrics")
SETTLED_SECONDS_MAX: Final = 90.0
LOOK_SECONDS: Final = 0.02
"""How often records are polled."""
WATCH_SECONDS: Final = 0.003
"""How often instances are polled."""

_nodes = decoder(NodeRecord)
_instances = decoder(InstanceRecord)


class UnsettledError(AssertionError):
    """The fleet did not come to rest."""


class Rig:
    """Runs the fleet. Enter it and every node is in service; leave it and nothing is left."""

    def __init__(
        self,
        directory: Path,
        shape: Shape,
        network: Network | None = None,
        fork_server: ForkServer | None = None,
        code: Path = ROOT,
    ) -> None:
        """Keep everything under `directory`.

        `network`: where each process is. `fork_server`: what starts the services, so that they need
        not import everything again. `code`: the release that the services are of at first.
        """
        self._code = code
        self._fork_server = fork_server
        self.directory = directory
        self.shape = shape
        self._network = network
        self._host = network.host if network else LOOPBACK
        several = shape.servers > 1
        self._cluster = Cluster(directory / "nats", shape.servers, network) if several else None
        place = ("--addr", self._host)
        alone = [EmbeddedServer(directory / "nats", arguments=place, sync=shape.sync)]
        self.servers = self._cluster.servers if self._cluster else alone
        self.server = self.servers[0]
        self.replicas: list[Replica] = []
        self.broken: list[str] = []
        self.desired = shape.nodes
        """How many nodes the pool was last asked to have."""
        self.desired_max = shape.nodes
        self.expected_sagas = [ExpectedSaga("scale-up") for _ in range(shape.nodes + shape.spares)]
        """Each must be found once."""
        self.answers: dict[str, PoolEvent] = {}
        """ID of a request -> the event that answers it."""
        self.unexpected_ends: list[str] = []
        """Processes that ended without a request."""
        self.signs: list[tuple[float, Moment, str]] = []
        """When a moment was seen, the moment, and the saga or node."""
        self.most = 0
        """The most instances that were seen at once."""
        self._armed: dict[Moment, list[Callable[[], None]]] = {}
        self._changed = asyncio.Condition()
        self._asked = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.provider: Provider
        self.bus: NatsBus
        self.agents: ScriptedAgents | None = None
        self.workload = Workload(self._order_received, shape.drain_seconds)
        self.disturbed: list[str] = []
        """Nodes that were reset or rebooted with work on them."""
        self.rungs_used: Counter[str] = Counter()
        """Node -> rungs of the ladder that were used."""
        self._faults: Counter[str] = Counter()
        self._outside = AsyncExitStack()

    # --- life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start everything and wait until the pool has its size."""
        self.directory.mkdir(parents=True, exist_ok=True)
        await self._outside.enter_async_context(serving(self.workload, self._host))
        self.provider, settings = settings_of(self.shape, self.directory, self.workload)
        (self.directory / "crash.yaml").write_text(json.dumps(settings), "utf-8")
        try:
            if self._cluster is not None:
                await self._cluster.__aenter__()
                await self._begin(self._cluster.url)
            else:
                await self._begin(await self.server.start())
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _begin(self, url: str) -> None:
        config = self.directory / "crash.yaml"
        # The rig itself connects to the servers on its own host.
        here = ",".join(each.url for each in self.servers if self._host in each.url)
        self.bus = await NatsBus.connect(
            ConnectOptions(
                settings=NatsSettings(url=here, replicas=self.shape.servers),
                name="crash-rig",
                ping_seconds=2,
            )
        )
        await asyncio.to_thread(set_up_by, self._code, here, self.shape.servers)
        if isinstance(self.provider, FakeProviderTruth):
            self.agents = ScriptedAgents(
                self.bus, POOL, self.provider, self.shape.boot_seconds, self._acted
            )
        following = (
            self._follow_sagas(await self.bus.last_sequence(SAGAS.name)),
            self._follow_events(await self.bus.last_sequence(EVENTS.name)),
            self._follow_instances(),
            self._watch_instances(),
        )
        self._tasks = [asyncio.create_task(each) for each in following]
        if self.agents is not None:
            self._tasks.append(asyncio.create_task(self.agents.run()))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")} | {
            "NAVARCH_NATS_URL": url,
            "NAVARCH_CONFIG": str(config),
        }
        self.replicas = [
            Replica(
                service,
                number,
                environment,
                self.directory,
                self.unexpected_ends.append,
                self.shape.apart_seconds * (number - 1),
                self._network.through(f"{service}/{number}") if self._network else (),
                self._fork_server,
            )
            for service in SERVICES
            for number in range(1, self.shape.replicas + 1)
        ]
        for each in self.replicas:
            each.code = self._code
        await asyncio.gather(*(each.start() for each in self.replicas))
        await asyncio.gather(*(each.is_ready() for each in self.replicas))
        await self.settled()

    async def __aexit__(self, *_: object) -> None:
        """End everything."""
        await asyncio.gather(*(each.stop() for each in self.replicas))
        if isinstance(self.provider, LocalProviderTruth):
            await asyncio.to_thread(stop_all, self.directory / "data" / "local")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "bus"):
            await self.bus.close()
        if self._cluster is not None:
            await self._cluster.__aexit__()
        else:
            await self.server.stop()
        await self._outside.aclose()

    def replica(self, service: str, number: int = 1) -> Replica:
        """Return one process of a service."""
        return next(each for each in self.replicas if each.name == f"{service}/{number}")

    def server_kill(self) -> None:
        """End nats-server as a power cut would, now."""
        os.kill(self.server.pid, signal.SIGKILL)

    def server_terminate(self) -> None:
        """Send SIGTERM to nats-server, now."""
        os.kill(self.server.pid, signal.SIGTERM)

    async def led(self) -> None:
        """Wait until every stream and durable of a cluster has a leader; one server leads all."""
        if self._cluster is not None:
            await self._cluster.led(self.bus)

    # --- moments ------------------------------------------------------------------------------

    def arm(self, moment: Moment, act: Callable[[], None]) -> asyncio.Event:
        """Call `act` once, when `moment` is seen next; then set the returned event."""
        done = asyncio.Event()

        def once() -> None:
            act()
            done.set()

        self._armed.setdefault(moment, []).append(once)
        return done

    def disarm(self) -> None:
        """Remove all armed functions."""
        self._armed.clear()

    async def _follow_sagas(self, after: int) -> None:
        async for stored in self.bus.follow(SAGAS.name, [subjects.SAGAS], "new", after=after):
            parsed = subjects.parse_saga(stored.subject)
            assert parsed is not None
            await self._record_and_notify(Moment(parsed.step, parsed.status), parsed.saga)

    async def _follow_events(self, after: int) -> None:
        filters = [subjects.NODE_EVENTS, subjects.POOL_EVENTS]
        async for stored in self.bus.follow(EVENTS.name, filters, "new", after=after):
            node = subjects.parse_node(stored.subject)
            if node is not None:
                status = "stored" if node.fact in ("fault", "verdict") else "published"
                if node.node in self.broken or status == "published":
                    self._record(Moment(node.fact, status), node.node)
                continue
            event = pool_codec.decode(stored.data)
            if isinstance(event, PoolEvent):
                self.answers[event.cause] = event
                about = event.old_node if isinstance(event, NodeReplaced) else event.pool
                await self._record_and_notify(Moment(FACTS[type(event)], "published"), about)

    async def _follow_instances(self) -> None:
        """Record each new state of an instance's record: the writes of a launch and of an order."""
        states: dict[str, str] = {}
        async for entry in self.bus.watch(INSTANCES):
            if entry.value:
                record = _instances.decode(entry.value)
                if states.get(record.instance) != record.state:
                    self._record(Moment(record.state, "stored"), record.instance)
                states[record.instance] = record.state

    async def _watch_instances(self) -> None:
        seen: set[str] = set()
        while True:
            names = self.provider.names()
            self.most = max(self.most, len(names))
            for step, changed in (
                ("provision", set(names) - seen),
                ("terminate", seen - set(names)),
            ):
                for name in changed:
                    self._record(Moment(step, TOOK_EFFECT), name)
            seen = set(names)
            await asyncio.sleep(WATCH_SECONDS)

    def _order_received(self, event: str, node: str) -> None:
        self._record(Moment(event.replace("_", "-"), TOOK_EFFECT), node)

    def _acted(self, step: str, node: str) -> None:
        if not self.workload.is_idle(node):
            self.disturbed.append(node)
        self._record(Moment(step, TOOK_EFFECT), node)

    def _record(self, moment: Moment, about: str) -> None:
        for act in self._armed.pop(moment, ()):
            act()
        self.signs.append((asyncio.get_running_loop().time(), moment, about))

    async def _record_and_notify(self, moment: Moment, about: str) -> None:
        self._record(moment, about)
        async with self._changed:
            self._changed.notify_all()

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait until a condition on the seen moments holds; checked after each stored message."""
        async with asyncio.timeout(SETTLED_SECONDS_MAX), self._changed:
            await self._changed.wait_for(met)

    async def ended(self, saga: str) -> str:
        """Wait until a saga has ended; return how: `done` or `unwound`."""
        ends = [Moment("saga", "done"), Moment("saga", "unwound")]

        def how() -> str:
            found = (moment for _, moment, about in self.signs if about == saga)
            return next((moment.status for moment in found if moment in ends), "")

        await self.until(lambda: bool(how()))
        return how()

    # --- requests -----------------------------------------------------------------------------

    async def ask(self, verb: str, **fields: Any) -> PoolEvent:
        """Publish a request, and wait for its answer."""
        payload = encode(REQUESTS[verb](by="crash", **fields))
        self._asked += 1
        name = f"{verb}-{self._asked}"
        async with asyncio.timeout(SETTLED_SECONDS_MAX):
            while True:
                with suppress(BusError):
                    subject = subjects.pool_request(POOL, verb)
                    sequence = await self.bus.publish(subject, payload, msg_id=name)
                    break
                await asyncio.sleep(LOOK_SECONDS)
        cause = f"request-{sequence}"
        await self.until(lambda: cause in self.answers)
        return self.answers[cause]

    def expect_saga(self, kind: str, node: str = "", ends: frozenset[str] = DONE) -> None:
        """Expect one more saga."""
        self.expected_sagas.append(ExpectedSaga(kind, node, ends))

    # --- faults and rest ----------------------------------------------------------------------

    async def break_a_node(self, ends: frozenset[str] = DONE) -> str:
        """Break the oldest node in service; return its name when the fault is published."""
        oldest = await self.oldest()
        self.broken.append(oldest)
        self.expect_saga("replace", oldest, ends)
        await self.fault(oldest, GONE)
        return oldest

    async def fault(self, node: str, code: int) -> None:
        """Report an XID of one GPU of a node."""
        self._faults[node] += 1
        if self.agents is not None:
            boot_id, number = self.agents.boot_id(node), self._faults[node]
            await self.agents.say(fault_of(POOL, node, code, number, boot_id))
        else:
            kmsg = self.directory / "data" / "local" / node / "kmsg"
            write_fault(kmsg, node, code, self._faults[node])

    async def oldest(self) -> str:
        """The longest-serving node of those that never broke, or else of all.

        A broken node that is in service was uncordoned by an operator.
        """
        async with asyncio.timeout(SETTLED_SECONDS_MAX):
            while True:
                with suppress(BusError):
                    nodes: list[NodeRecord] = [
                        _nodes.decode(each.value) for each in await self.bus.entries(NODES)
                    ]
                    serving = [each for each in nodes if each.state == "active" and not each.spare]
                    fit = [each for each in serving if each.node not in self.broken] or serving
                    if fit:
                        return min(fit, key=lambda each: (each.admitted_at, each.node)).node
                await asyncio.sleep(LOOK_SECONDS)

    async def evidence(self) -> Evidence:
        """Everything that the comparison needs."""
        truth = self.provider.truth()
        return await consistency.gather(
            self.bus,
            POOL,
            truth,
            nodes_wanted=self.desired,
            spares_wanted=self.shape.spares,
            instances_max=self.desired_max
            + self.shape.spares
            + (self.shape.order == "provision_first"),
            acts=tuple(self.agents.acts) if self.agents is not None else None,
            disturbed=tuple(self.disturbed),
            expected_sagas=tuple(self.expected_sagas),
            most=self.most,
            orders=self.workload.orders,
        )

    async def settled(self) -> Evidence:
        """Wait until the fleet is at rest, and return its state."""
        seen: Evidence | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLED_SECONDS_MAX):
                while True:
                    with suppress(BusError, msgspec.DecodeError):
                        if set(self._replaced()) >= set(self._to_be_replaced()):
                            seen = await self.evidence()
                            if consistency.is_settled(seen):
                                return seen
                    await asyncio.sleep(LOOK_SECONDS)
        self.disarm()
        seen = await self.evidence()
        why = consistency.report(seen, consistency.differences(seen))
        raise UnsettledError(f"not at rest after {SETTLED_SECONDS_MAX:g} s\n{why}")

    def _to_be_replaced(self) -> Iterator[str]:
        return (
            each.node
            for each in self.expected_sagas
            if each.kind == "replace" and each.ends == DONE
        )

    def _replaced(self) -> Iterator[str]:
        return (about for _, moment, about in self.signs if moment == REPLACED)

    async def quiet(self) -> None:
        """Wait until no consumer has pending messages, redeliveries included."""
        async with asyncio.timeout(SETTLED_SECONDS_MAX):
            while await busy(self.bus):
                await asyncio.sleep(LOOK_SECONDS)

    async def differences(self) -> tuple[list[Difference], str]:
        """The differences of the fleet at rest, and a report that helps to find their cause."""
        seen = await self.settled()
        found = consistency.differences(seen)
        return found, consistency.report(seen, found) if found else ""
