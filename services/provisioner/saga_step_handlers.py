"""The steps of sagas that the provisioner performs: provision, bootstrap, terminate; and to mend.

Undoing a provision is a termination that must also be right where the launch never began or is
still under way at another replica: it leaves a record that a late launch cannot pass.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from schemas.instance_records import InstanceRecord
from schemas.instance_type_catalogue import InstanceTypes
from schemas.node_records import node_key
from schemas.settings import AgentSettings, NatsSettings
from schemas.step_data import BootstrapInputs, ProvisionInputs, ProvisionOutputs, TerminateInputs
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.provisioner.bootstrap.ssh_setup import SshSetup
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.launch.launch_lease import LaunchLeases
from services.provisioner.launch.launcher import Launcher
from services.provisioner.node_recovery.diagnostic_step import DiagnosticStep
from services.provisioner.node_recovery.reset_and_reboot_steps import NodeRecovery
from services.provisioner.offerings.offering_allocator import OfferingAllocator
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.offerings.offering_scorer import OfferingScorer
from services.provisioner.offerings.offering_store import OfferingStore
from services.provisioner.offerings.scheduler_plugins import Schedulers
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.removal.remover import Remover
from services.provisioner.time_limits import TimeLimits
from services.saga.participant import Action, Command, StepFailure
from services.saga.saga_log import read_state

Ask = Callable[[], Awaitable[bool]]


class SagaStepHandlers:
    """What the participant calls."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: InstanceStore,
        providers: Providers,
        timing: TimeLimits,
        templates: BootstrapTemplates | None = None,
        chooser: OfferingAllocator | None = None,
        replica: str = "",
    ) -> None:
        """Work with these; `handover` is what new nodes are given.

        Without a `chooser` nothing is known of prices, and nothing is capped.
        """
        templates = templates or BootstrapTemplates(NatsSettings(), AgentSettings(), Path())
        self._bus = bus
        self._clock = clock
        self._store = store
        self._providers = providers
        self._timing = timing
        self.remover = Remover(bus, clock, store, providers, timing)
        self._checker = DiagnosticStep(bus, clock)
        self._setup = SshSetup(bus, clock, store, providers, templates)
        self._mender = NodeRecovery(bus, clock, store, providers, timing)
        if chooser is None:
            catalogue = OfferingCatalogue(InstanceTypes(), providers.traits())
            weigher = OfferingScorer(store, clock, catalogue)
            offerings = OfferingStore(bus, clock)
            chooser = OfferingAllocator(bus, clock, store, offerings, weigher, Schedulers({}, None))
        self._launcher = Launcher(
            clock,
            store,
            providers,
            self.remover,
            timing,
            templates.user_data,
            chooser,
            LaunchLeases(bus, clock, replica),
        )

    @property
    def actions(self) -> dict[str, Action]:
        """Step -> action."""
        return {
            "provision": self.provision,
            "bootstrap": self.bootstrap,
            "terminate": self.terminate,
            "check": self._checker.check,
            **self._mender.actions,
        }

    @property
    def undos(self) -> dict[str, Action]:
        """Step -> undo."""
        return {"provision": self.provision_undo}

    async def provision(self, command: Command) -> ProvisionOutputs:
        """Bring about the instance."""
        inputs = command.inputs_as(ProvisionInputs)
        return await self._launcher.launch(inputs, command.saga, self._is_superseded(command))

    async def provision_undo(self, command: Command) -> None:
        """Take it back, whether or not it came about."""
        await self._remove(command, undo=True)

    async def bootstrap(self, command: Command) -> None:
        """Bring the agent onto the instance; most come up with it by themselves."""
        inputs = command.inputs_as(BootstrapInputs)
        record = await self._store.get(node_key(inputs.pool, inputs.node))
        if record is None or record.state != "running":
            raise StepFailure(f"there is no running instance {inputs.node}")
        instance = instance_decisions.instance_of(record)
        try:
            calls = self._providers.get(record.provider)
            await calls.bootstrap(instance, timeout_seconds=self._timing.bootstrap_timeout_seconds)
            if record.launch.setup is not None:
                await self._setup.run(record, record.launch.setup, command.saga)
        except ProviderError as error:
            raise StepFailure(error.message, error=error.kind) from error

    async def terminate(self, command: Command) -> None:
        """Remove the instance; one that nobody knows is gone already."""
        await self._remove(command, undo=False)

    async def _remove(self, command: Command, *, undo: bool) -> None:
        inputs = command.inputs_as(TerminateInputs)
        key = node_key(inputs.pool, inputs.node)

        def decide(record: InstanceRecord | None) -> InstanceRecord:
            now = self._clock.now()
            if record is None:
                return instance_decisions.cancelled_record(
                    inputs.pool, inputs.node, command.saga, now
                )
            return instance_decisions.mark_terminating(record, now)

        await self._store.change(key, decide)
        if not await self.remover.remove_until_gone(key, self._is_superseded(command, undo=undo)):
            raise StepFailure("the saga went on without it; the sweep keeps at it")

    def _is_superseded(self, command: Command, *, undo: bool = False) -> Ask:
        """Whether the saga has gone on and wants this command no more."""
        wanted = "undo-started" if undo else "started"

        async def ask() -> bool:
            state = await read_state(self._bus, command.saga)
            return state is not None and state.step(command.step).status != wanted

        return ask
