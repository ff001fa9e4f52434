"""Gives a new node its world: a secured bus, and the provisioner's answer to enrollments."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from agent.settings import AgentConfig
from schemas import subjects
from schemas.node_events import CredentialsIssued, CredentialsRefused, node_codec
from schemas.permissions import bootstrap_inbox, pod_inbox
from schemas.saga_params import LaunchSpec
from schemas.settings import AgentSettings, NatsSettings
from schemas.topology import EVENTS
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.port import Bus
from services.cli.nats_config_files import SIGNING_FILE
from services.primitives.clock import Clock, SystemClock
from services.provisioner.bootstrap.enrollment_endpoint import EnrollmentEndpoint
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider_errors import ProviderError
from tests.support.secured import Secured

NODE = "training-1"
OWN = f"navarch.v1.node.training.{NODE}"
OTHER = "navarch.v1.node.training.training-2"


class World:
    """A secured bus, the provisioner's answer on it, and one node that is being launched."""

    def __init__(self, secured: Secured, bus: NatsBus, place: Path) -> None:
        self.connecting = asyncio.Event()
        self.secured = secured
        self.bus = bus
        self.store = InstanceStore(bus)
        self.agent = AgentSettings()
        signing = str(secured.directory / SIGNING_FILE)
        self.nats = NatsSettings(url=secured.url, agent_signing_file=signing)
        self.templates = BootstrapTemplates(self.nats, self.agent, place)
        self.launch = LaunchSpec(
            fleet="f", provider="aws", instance_type="t", gpu_count=0, user_data="auto"
        )
        self.record = instance_decisions.intended_record(
            "training", NODE, self.launch, "saga", datetime.now(UTC)
        )
        self.config = AgentConfig(
            pool="training",
            node=NODE,
            nats_url=secured.url,
            nats_creds_file=str(place / "own" / "nats.creds"),
            nats_bootstrap_file=str(place / "bootstrap.creds"),
        )

    async def node_of_pod(self, provider: str, token: str) -> str:
        """Be the cluster: the token of a pod is its node's name."""
        if not token.startswith("pod on "):
            raise ProviderError("INVALID", f"{provider} does not know the pod's token")
        return token.removeprefix("pod on ")

    async def use_token(self, *_: object) -> str:
        """Know no machine that joins."""
        return "there is no such token"

    async def start(self, clock: Clock | None = None) -> None:
        """Record the node, and answer."""
        await self.answer(clock or SystemClock())
        await self.store.create(self.record)

    async def answer(self, clock: Clock) -> None:
        """Be the provisioner."""
        enroller = EnrollmentEndpoint(
            self.bus, clock, self.store, self.agent, self.nats, self.node_of_pod, self.use_token
        )
        await self.bus.serve(
            "provisioner",
            "",
            {subjects.ENROLL: enroller.answer, subjects.ENROLL_POD: enroller.answer_pod},
        )

    async def restart(self) -> None:
        """The provisioner is back."""
        self.bus = await NatsBus.connect(self.secured.options("provisioner"))
        self.store = InstanceStore(self.bus)
        await self.answer(SystemClock())

    def hand_over(self) -> Path:
        """Leave the node its bootstrap credentials."""
        file = Path(self.config.nats_bootstrap_file)
        file.write_text(self.templates.credentials(self.record))
        return file

    async def connect(self, file: Path) -> Bus:
        """Connect as a node that has but these."""
        self.connecting.set()
        settings = NatsSettings(url=self.secured.url, creds_file=str(file))
        own = self.config
        box = pod_inbox(own.pool) if own.pod_token_file else bootstrap_inbox(own.pool, own.node)
        return await NatsBus.connect(
            ConnectOptions(settings=settings, name="new node", inbox_prefix=box)
        )

    async def published(self) -> list[object]:
        """Return the events about the node's credentials."""
        stored = await self.bus.read(EVENTS.name, f"{OWN}.event.*")
        found = [type(node_codec.decode(each.data)) for each in stored]
        return [each for each in found if each in (CredentialsIssued, CredentialsRefused)]
