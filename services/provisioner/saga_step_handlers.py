"""The saga steps of the provisioner: provision, bootstrap, terminate, and those of node recovery.

The undo of a provision is a termination that must also be right where the launch never began, or is
in progress at another replica: it leaves a record that stops a late launch.
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from schemas.enums import DENIED_HARDWARE
from schemas.instance_records import InstanceRecord
from schemas.launch_fingerprints import IMAGE, USER_DATA, at, image_digest
from schemas.node_records import node_key
from schemas.saga_params import LaunchSpec
from schemas.settings import PluginSettings
from schemas.step_data import BootstrapInputs, ProvisionInputs, ProvisionOutputs, TerminateInputs
from schemas.termination_orders import Authority, AuthorityKind
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import Retry
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.launch.gang_barrier import GangBarrier, bounded
from services.provisioner.launch.launch_lease import LaunchLeases
from services.provisioner.launch.launcher import SUPERSEDED, IsSuperseded, Launcher
from services.provisioner.launch.restored_launches import RestoredLaunches
from services.provisioner.launch.unrecorded_launches import UnrecordedLaunches
from services.provisioner.node_recovery.diagnostic_step import DiagnosticStep
from services.provisioner.node_recovery.reset_and_reboot_steps import NodeRecovery
from services.provisioner.offerings.offering_allocator import OfferingAllocator
from services.provisioner.offerings.offering_store import OfferingStore
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.removal.kept_instances import is_kept, keep
from services.provisioner.removal.orphans import Orphans
from services.provisioner.removal.remover import Remover
from services.provisioner.time_limits import TimeLimits
from services.saga.participant import Action, Command, StepFailure
from services.saga.saga_log import read_state

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from services.provisioner.bootstrap.ssh_setup import SshSetup


class SagaStepHandlers:
    """Handles the saga steps that the participant calls."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: InstanceStore,
        providers: Providers,
        limits: TimeLimits,
        templates: BootstrapTemplates,
        allocator: OfferingAllocator,
        gangs: GangBarrier,
        offerings: OfferingStore,
        replica: str,
        configured: Mapping[str, PluginSettings] = MappingProxyType({}),
    ) -> None:
        """`configured`: the providers' options, by name."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._providers = providers
        self._limits = limits
        self._gangs = gangs
        self._offerings = offerings
        self.remover = Remover(bus, clock, store, providers, limits)
        self._diagnostic = DiagnosticStep(bus, clock)
        self._templates = templates
        self._configured = configured
        self._recovery = NodeRecovery(bus, clock, store, providers, limits)
        leases = LaunchLeases(bus, clock, replica)
        self._restored = RestoredLaunches(bus)
        self._orphans = Orphans(bus, clock, store, self.remover)
        self._launcher = Launcher(
            *(clock, store, providers, self.remover, limits, templates.user_data),
            *(allocator, leases, UnrecordedLaunches(bus), self._restored.why_kept),
        )

    @cached_property
    def _setup(self) -> "SshSetup":
        """Imported for the first node that needs it: asyncssh takes a third of a start."""
        from services.provisioner.bootstrap.ssh_setup import SshSetup  # noqa: PLC0415

        return SshSetup(self._bus, self._clock, self._store, self._providers, self._templates)

    @property
    def actions(self) -> dict[str, Action]:
        """Step -> action."""
        return {
            "provision": self.provision,
            "bootstrap": self.bootstrap,
            "terminate": self.terminate,
            "check": self._diagnostic.check,
            **self._recovery.actions,
        }

    @property
    def undos(self) -> dict[str, Action]:
        """Step -> undo."""
        return {"provision": self.provision_undo}

    async def provision(self, command: Command) -> ProvisionOutputs:
        """Launch the instance."""
        inputs = command.inputs_as(ProvisionInputs)
        superseded = self._supersession(command)
        await self._note_interruption(inputs)
        try:
            made = await self._launcher.launch(
                bounded(inputs), command.saga, superseded, again=command.deliveries > 1
            )
            await self._gangs.await_whole(inputs, superseded)
        except StepFailure as failure:
            await self._gangs.fail(inputs, failure.reason, failure.error)
            raise
        instance = Instance(name=inputs.node, provider_id=made.provider_id)
        can = self._providers.get(made.provider).can_restart_cold(instance)
        return replace(made, restarts_cold=can, sources=self._sources(made.provider, inputs.launch))

    async def _note_interruption(self, inputs: ProvisionInputs) -> None:
        """Record that the cloud takes the node that this one replaces, before a choice is made."""
        choice = inputs.launch.choice
        if not inputs.interrupted or choice is None or not choice.interruption_seconds:
            return
        record = await self._store.get(node_key(inputs.pool, inputs.interrupted))
        if record is not None and record.offering is not None:
            await self._offerings.record_interruption(record.offering, record.instance)

    def _sources(self, provider: str, launch: LaunchSpec) -> dict[str, str]:
        """What it was launched with that only this configuration knows."""
        found = {USER_DATA: self._templates.digest(launch.user_data)}
        if provider in self._configured:
            of_pool = launch.choice.options_at(provider) if launch.choice is not None else {}
            found[at(provider, IMAGE)] = image_digest(self._configured[provider], of_pool)
        return {key: each for key, each in found.items() if each}

    async def provision_undo(self, command: Command) -> None:
        """Remove the instance, whether or not it was launched."""
        inputs = command.inputs_as(ProvisionInputs)
        await self._gangs.fail(inputs, f"the launch of {inputs.node} was undone", "")
        launch, record = inputs.launch, await self._store.get(node_key(inputs.pool, inputs.node))
        if record is not None and (
            record.state == "orphaned" or record.saga == instance_decisions.ADOPTED
        ):
            return  # it is not what this launch made
        if why := await self._restored.why_kept(inputs.pool, inputs.node, command.saga):
            now = self._clock.now()
            intended = instance_decisions.intended_record(
                inputs.pool, inputs.node, launch, command.saga, now
            )
            if await self._orphan(record or intended, why):
                return
        by = _authority(command, "launch", self._clock.now())
        if await self._keep(node_key(inputs.pool, inputs.node), inputs.pool, command.saga, by):
            return
        # A launch in doubt may still come into effect: a refusal is waited for as long as a leak.
        accepted_within = self._limits.leak_after_seconds
        superseded = self._supersession(command, undo=True)
        await self._remove(command, launch, by, superseded, accepted_within)

    async def _keep(self, key: str, pool: str, saga: str, by: Authority) -> bool:
        """Keep an instance that was refused for its hardware, for the sweep to remove later."""
        record = await self._store.get(key)
        if record is not None and record.state == "running":
            state = await read_state(self._bus, saga)
            if state is None or state.step(state.failed_step).error != DENIED_HARDWARE:
                return False
            others = (await self._store.all(pool)).values()

            def decide(found: InstanceRecord | None) -> InstanceRecord | None:
                return found and keep(found, others, self._clock.now(), by)

            record = await self._store.change(key, decide)
        return record is not None and is_kept(record, self._clock.now())

    async def _orphan(self, record: InstanceRecord, why: str) -> bool:
        """Leave an instance that may be in service to an operator; False: no provider lists it."""
        for provider in instance_decisions.possible_providers(record, self._providers.calls):
            try:
                listed = await self._providers.get(provider).list_instances()
            except ProviderError as error:
                raise Retry(f"{provider} cannot be listed: {error}") from error
            found = instance_decisions.find_adoptable(record, listed)
            if found is not None:
                await self._orphans.keep_launched(record, provider, found, why)
                return True
        return False

    async def bootstrap(self, command: Command) -> None:
        """Start the agent on the instance, if it does not start by itself."""
        inputs = command.inputs_as(BootstrapInputs)
        record = await self._store.get(node_key(inputs.pool, inputs.node))
        if record is None or record.state == "intended":
            # INSTANCES is lost or was set back: to fail would undo the launch of a machine that
            # is there.
            raise Retry(f"INSTANCES lacks {inputs.node} as it is; the sweep records it again")
        if record.state != "running":
            raise StepFailure(f"there is no running instance {inputs.node}")
        instance = instance_decisions.instance_of(record)
        try:
            calls = self._providers.get(record.provider)
            await calls.bootstrap(instance, timeout_seconds=self._limits.bootstrap_timeout_seconds)
            if record.launch.setup is not None:
                await self._setup.run(record, record.launch.setup, command.saga)
        except ProviderError as error:
            raise StepFailure(error.message, error=error.kind) from error

    async def terminate(self, command: Command) -> None:
        """Remove the instance; without a record, wherever a provider lists it."""
        await self._report_faulty_host(command.inputs_as(TerminateInputs))
        launch = LaunchSpec(fleet=await self._store.fleet(), provider="", instance_type="")
        accepted_within = self._limits.accepted_within_seconds
        by = _authority(command, "saga", self._clock.now())
        await self._remove(command, launch, by, self._supersession(command), accepted_within)

    async def _report_faulty_host(self, inputs: TerminateInputs) -> None:
        """Report once why the provider gets its host back; the removal does not depend on it."""
        record = await self._store.get(node_key(inputs.pool, inputs.node)) if inputs.fault else None
        if record is None or record.state != "running" or not record.provider_id:
            return
        about = {"instance": record.instance, "provider": record.provider, "fault": inputs.fault}
        try:
            calls = self._providers.get(record.provider)
            if await calls.report_faulty_host(record.provider_id, inputs.fault):
                log.info("faulty host reported", extra=about)
        except ProviderError as error:
            log.warning("faulty host not reported", extra={**about, "reason": str(error)})

    async def _remove(
        self,
        command: Command,
        launch: LaunchSpec,
        by: Authority,
        is_superseded: IsSuperseded,
        accepted_within_seconds: float,
    ) -> None:
        """Remove an instance; `launch` says what is known of one without a record."""
        inputs = command.inputs_as(TerminateInputs)
        key = node_key(inputs.pool, inputs.node)

        def decide(record: InstanceRecord | None) -> InstanceRecord:
            now = self._clock.now()
            if record is None and not launch.fleet:
                raise Retry("POOLS has no fleet ID; the pool-manager records it again")
            if record is None:
                return instance_decisions.unrecorded_instance(
                    inputs.pool, inputs.node, launch, by, now
                )
            return instance_decisions.mark_terminating(record, now, by)

        if not await self.remover.remove(key, decide, is_superseded, accepted_within_seconds):
            raise StepFailure(f"{SUPERSEDED}; the sweep keeps removing the instance")

    def _supersession(self, command: Command, *, undo: bool = False) -> IsSuperseded:
        """Return a check whether the saga has gone on and no longer needs this command."""
        wanted = "undo-started" if undo else "started"
        removes = undo or command.step == "terminate"
        had_log = command.revision > 0

        async def is_superseded() -> bool:
            nonlocal had_log
            state = await read_state(self._bus, command.saga)
            had_log |= state is not None
            if removes and had_log and state is None:
                raise Retry(f"{command.saga} has no log: SAGAS is lost, or was set back")
            return state is not None and state.step(command.step).status != wanted

        return is_superseded


def _authority(command: Command, kind: AuthorityKind, now: datetime) -> Authority:
    """Return the authority of a step's command."""
    return Authority(
        kind=kind, saga=command.saga, step=command.step, revision=command.revision, at=now
    )
