"""Machines that you own, from an inventory: provisioning claims one, over SSH.

The claim is stored on the machine itself (`ssh_claims`), so that every provisioner that can reach
it sees the same, and no other state is needed. A launch takes a machine, checks all machines for
another one taken by its token, and holds the first by name; only a held machine is an instance that
may be adopted. Of two replicas that launch one token at once, the one that holds last finds its
machine dropped, and checks again.

A machine that cannot be reached is listed with `may_hold`: its instances do not count as gone, and
the rest of the fleet is handled as usual. An operator confirms that a machine is gone by removing
it from the inventory.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from services.primitives.coalesce import Joined
from services.primitives.errors import ConfigurationError
from services.provisioner.instances.instance_tags import tags_of
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    InstanceStatus,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import ssh_claims
from services.provisioner.providers.power_control import (
    IpmiPower,
    PowerControl,
    RedfishPower,
    restart_cold,
)
from services.provisioner.providers.provider_secret import read_secret
from services.provisioner.providers.request_checks import invalid
from services.provisioner.providers.ssh_claims import ClaimReport, MachineClaim
from services.provisioner.providers.ssh_connections import SshConnections
from services.provisioner.providers.ssh_inventory import InventoryMachine, SshInventory, SshOptions

AT_ONCE_MAX: Final = 64
"""Machines that are connected to at the same time."""
TRIES_MAX: Final = 5
REST_SECONDS: Final = 3_600
"""A machine released more recently comes last: it may have been released because it failed."""
NAMED_MAX: Final = 3

STATUSES: Final[dict[ssh_claims.ClaimState, InstanceStatus]] = {
    "taken": "stopped",
    "held": "running",
    "going": "stopping",
}
"""A claim's state -> ours; one that is only taken is no instance yet, and is not adopted."""


@dataclass(frozen=True, slots=True)
class MachineReport:
    """Holds a machine with its report, or with the reason for none."""

    machine: InventoryMachine
    answer: ClaimReport | ProviderError

    @property
    def state(self) -> str:
        """Return the state of the machine's claim; empty: unknown."""
        return self.answer.state if isinstance(self.answer, ClaimReport) else ""

    def has(self, token: str, state: ssh_claims.ClaimState) -> bool:
        """Return whether this token claims the machine in this state."""
        answer = self.answer
        return isinstance(answer, ClaimReport) and (answer.state, answer.token) == (state, token)


MachineReports = Sequence[MachineReport]


class SshProvider:
    """Claims and releases the machines of one inventory."""

    capabilities = Capabilities(idempotency_token=True, reboot=True, fixed_capacity=True)
    """A claim is found again by its token, and a machine is known by its name."""

    Options = SshOptions

    def __init__(self, *, options: SshOptions, environment: Environment) -> None:
        self.options = options
        self.name = environment.name
        self._inventory = SshInventory(environment.name, options.machines, options.inventory)
        for machine in self._inventory.machines():
            if not (machine.key_file or options.key_file):
                raise ConfigurationError(
                    f"no private key for {machine.display_name}",
                    key=f"providers.{environment.name}.key_file",
                )
        self._bmc_password = ""
        if options.bmc is not None:
            names = {"env": options.bmc.password_env, "file": options.bmc.password_file}
            what = "the password of the machines' controllers"
            self._bmc_password = read_secret(environment.name, "bmc.password", what, **names)
        elif named := next((each for each in self._inventory.machines() if each.bmc), None):
            raise ConfigurationError(
                f"{named.display_name} has a `bmc`: set the login of the controllers",
                key=f"providers.{environment.name}.bmc.user",
            )
        pins = environment.data_dir / "ssh" / f"{environment.name}.known_hosts"
        self._links = SshConnections(options, pins, time.monotonic)
        self._room = asyncio.Semaphore(AT_ONCE_MAX)
        self._surveys = Joined(self._survey)

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Claim a free machine, or return the one that this token has claimed."""
        if request.user_data:
            raise invalid(
                f"pool {request.pool} has `user_data`, which a machine reads only at its first "
                "boot; use `setup_commands`"
            )
        for _ in range(TRIES_MAX):
            seen = await self._all()
            if held := _claims_of(seen, request.token, "held"):
                return self._instance(held[0])
            if not _claims_of(seen, request.token, "taken") and not await self._take(request, seen):
                continue
            if made := await self._hold(request.token):
                return made
        raise ProviderError("TRANSIENT", f"other replicas claim machines for {request.name}")

    async def terminate(self, provider_id: str) -> None:
        """Release the machine; success if it has another claim or left the inventory."""
        name, _, token = provider_id.rpartition(":")
        machine = self._machine(name)
        if machine is None:
            return
        look = await self._order("release", machine, token=token, command=self.options.wipe_command)
        if look.wipe_status is not None and look.token == token:
            raise ProviderError(
                "TRANSIENT",
                f"{name} is not released: `wipe_command` ended with {look.wipe_status}; it "
                f"wrote: {look.wipe_output or 'nothing'}",
            )

    async def reboot(self, instance: Instance) -> None:
        """Begin to reboot the machine, if the claim on it is still this one."""
        name, _, token = instance.provider_id.rpartition(":")
        machine = self._machine(name)
        if machine is None or not self.options.reboot_command:
            why = "is in no inventory" if machine is None else "has no `reboot_command`"
            raise invalid(f"{name} {why}")
        look = await self._order(
            "reboot", machine, token=token, command=self.options.reboot_command
        )
        if not look.rebooting:
            raise invalid(f"{name} is no longer claimed by {instance.name}")

    def can_restart_cold(self, instance: Instance) -> bool:
        """Return whether the machine's controller is known."""
        return self._control(instance) is not None

    async def restart_cold(self, instance: Instance) -> None:
        """Switch the machine off and on by its controller; its claim outlives that."""
        name = instance.provider_id.rpartition(":")[0]
        control = self._control(instance)
        if control is None:
            raise invalid(f"{name} has no `bmc`, or is in no inventory")
        await restart_cold(name, control, asyncio.sleep)

    def _control(self, instance: Instance) -> PowerControl | None:
        """The controller of an instance's machine; None: it is not known."""
        machine = self._machine(instance.provider_id.rpartition(":")[0])
        options = self.options.bmc
        if machine is None or options is None or not machine.bmc:
            return None
        if options.type == "redfish":
            return RedfishPower(machine.bmc, machine.bmc_system, options, self._bmc_password)
        return IpmiPower(machine.bmc, options, self._bmc_password)

    async def list(self) -> list[Instance]:
        """Return every claim, and every unreachable machine, which may hold one."""
        seen = await self._all()
        _require_answers(seen)
        return [self._instance(each) for each in seen if each.state != "free"]

    async def close(self) -> None:
        """Close the connections; claims stay."""
        await self._surveys.close()
        await self._links.close()

    # --- the parts of a claim --------------------------------------------------------------------

    async def _take(self, request: ProvisionRequest, seen: MachineReports) -> bool:
        """Take a free machine that fits; False if none of them is free any more."""
        fitting = [each for each in seen if each.machine.fits(request)]
        if not fitting:
            types = ", ".join(sorted({each.machine.type for each in seen}))
            place = " ".join(each for each in (request.region, request.zone) if each)
            raise ProviderError(
                "UNSUPPORTED",
                f"no machine of {self.name} is a {request.instance_type} with "
                f"{request.gpu_count} GPUs in {place or 'any place'}; its types: {types}",
            )
        claim = MachineClaim(
            fleet=request.fleet,
            pool=request.pool,
            name=request.name,
            token=request.token,
            instance_type=request.instance_type,
            region=request.region,
            zone=request.zone,
            provider=self.name,
            tags=tags_of(request),
        )
        _require_answers(fitting)
        free = [each for each in fitting if each.state == "free"]
        for each in sorted(free, key=lambda sight: _preference(sight, request.token)):
            try:
                look = await self._order("take", each.machine, token=request.token, claim=claim)
            except ProviderError as error:
                if error.rule.in_doubt:
                    raise
                continue
            if look.is_of(request.token):
                return True
        if free:
            return False
        raise ProviderError("CAPACITY", _full(fitting, request.instance_type))

    async def _hold(self, token: str) -> Instance | None:
        """Hold the first of the machines that a token has taken, and drop the others.

        None if another one is held already, or if another replica has just dropped it.
        """
        seen = await self._all()
        taken = _claims_of(seen, token, "taken")
        keep = None if _claims_of(seen, token, "held") else next(iter(taken), None)
        for each in taken:
            if each is not keep:
                look = await self._order("drop", each.machine, token=token)
                if (look.token, look.state) == (token, "held"):
                    keep = None
        if keep is None:
            return None
        sight = MachineReport(keep.machine, await self._order("hold", keep.machine, token=token))
        return self._instance(sight) if sight.has(token, "held") else None

    async def _order(
        self,
        order: ssh_claims.ClaimCommand,
        machine: InventoryMachine,
        *,
        token: str = "",
        claim: MachineClaim | None = None,
        command: str = "",
        patient: bool = True,
    ) -> ClaimReport:
        script = ssh_claims.script(
            order, self.options.claim_folder, token=token, claim=claim, command=command
        )
        look = ssh_claims.read(await self._links.run(machine, script, patient=patient))
        if look is None:
            raise ProviderError("TRANSIENT", f"{machine.display_name} did not report its claim")
        return look

    async def _all(self) -> MachineReports:
        """Return every machine's report, from a survey that started no earlier than this call."""
        return await self._surveys("")

    async def _survey(self, _: str) -> MachineReports:
        return await asyncio.gather(*map(self._one, self._machines()))

    async def _one(self, machine: InventoryMachine) -> MachineReport:
        async with self._room:
            try:
                return MachineReport(machine, await self._order("look", machine, patient=False))
            except ProviderError as error:
                return MachineReport(machine, error)

    def _machine(self, name: str) -> InventoryMachine | None:
        return next((each for each in self._machines() if each.display_name == name), None)

    def _machines(self) -> Sequence[InventoryMachine]:
        try:
            return self._inventory.machines()
        except ConfigurationError as error:
            raise invalid(str(error)) from error

    def _instance(self, sight: MachineReport) -> Instance:
        """Return a machine as an instance."""
        machine, answer = sight.machine, sight.answer
        place = Instance(
            name=machine.display_name,
            provider_id=machine.display_name,
            region=machine.region,
            zone=machine.zone,
            address=machine.address,
            host=machine.display_name,
            instance_type=machine.type,
        )
        if isinstance(answer, ProviderError):
            return msgspec.structs.replace(
                place,
                status="stopped",
                may_hold=f"{machine.display_name}:",
                tags={"why": str(answer)},
            )
        claim = answer.claim or MachineClaim(
            fleet="", pool="", name=machine.display_name, token=answer.token
        )
        return msgspec.structs.replace(
            place,
            name=claim.name,
            provider_id=f"{machine.display_name}:{answer.token}",
            status=STATUSES.get(answer.state, "running"),
            fleet=claim.fleet,
            pool=claim.pool,
            token=claim.token,
            region=machine.region or claim.region,
            zone=machine.zone or claim.zone,
            tags=machine.labels | claim.tags,
        )


def _require_answers(seen: MachineReports) -> None:
    """Raise if no machine answers: then the cause is more likely here than on all machines."""
    failed = [each.answer for each in seen if isinstance(each.answer, ProviderError)]
    if len(failed) == len(seen):
        why = failed[0]
        raise ProviderError(why.kind, f"none of {len(seen)} machines can be used: {why.message}")


def _claims_of(seen: MachineReports, token: str, state: ssh_claims.ClaimState) -> MachineReports:
    """Return the machines that a token claims in this state, in the same order everywhere."""
    return sorted(
        (each for each in seen if each.has(token, state)),
        key=lambda each: each.machine.display_name,
    )


def _preference(sight: MachineReport, token: str) -> tuple[bool, str]:
    """Recently released machines last; the others in an order that depends on the token."""
    since = sight.answer.free_seconds if isinstance(sight.answer, ClaimReport) else None
    mixed = hashlib.sha256(f"{token}/{sight.machine.display_name}".encode()).hexdigest()
    return since is not None and since < REST_SECONDS, mixed


def _full(fitting: MachineReports, kind: str) -> str:
    """Say why no machine is free."""
    failed = [str(each.answer) for each in fitting if isinstance(each.answer, ProviderError)]
    going = sum(each.state == "going" for each in fitting)
    claimed = len(fitting) - len(failed) - going
    text = f"none of {len(fitting)} machines of type {kind} is free: {claimed} are claimed"
    if going:
        text += f", {going} are being released"
    if failed:
        text += f", {len(failed)} cannot be used ({'; '.join(failed[:NAMED_MAX])})"
    return text
