"""A simulated cloud, and the provider plugin that calls it.

It keeps the contract of `services.provisioner.provider_client.provider` exactly, and its machines
exist whether or not a record names them. Injected faults make its calls fail, before or after
their effect.
"""

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from schemas.enums import ProviderErrorKind
from schemas.launch_offers import Offering
from schemas.offering_records import OfferingQuota
from schemas.settings import Setting
from services.provisioner.instances.instance_tags import instance_for
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError
from services.simulator.engine.listed_ids import ListedIds
from services.simulator.engine.offering_selector import ANYWHERE, OfferingSelector
from services.simulator.engine.simulation_context import (
    CURRENT_SIMULATION,
    SimulationContext,
    current_process,
)
from services.simulator.engine.virtual_time import TASK_OWNER

CALL_SECONDS_MAX: Final = 1.5
"""Of an ordinary call; half of it passes before the effect."""
BEFORE: Final = frozenset({"before", "hang", "cut-off"})
"""Effects of failing calls that make no machine as they arrive."""
STOPPING_SECONDS_MAX: Final = 5.0
SLOW_SECONDS: Final = 5.0
"""How often a cloud that takes its time looks whether a machine may be gone."""

Call = Literal["provision", "terminate", "list"]
Effect = Literal["before", "after", "hang", "hang-after", "cut-off"]


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Makes one call fail, or all calls until a moment."""

    call: Call
    kind: ProviderErrorKind = "TRANSIENT"
    effect: Effect = "before"
    """`after`: it takes effect and the answer is lost; `hang`: no answer ever comes; `cut-off`:
    the calling replica is cut off from the bus until it takes effect."""
    seconds: float = 0.0
    """How long a `cut-off` lasts."""
    until: float = 0.0
    """0: only the next call."""
    selector: OfferingSelector = ANYWHERE
    """Only launches of these offerings."""


@dataclass(slots=True)
class CloudInstance:
    """One machine, from its launch until it is gone."""

    instance: Instance
    shown_at: float
    """When lists begin to show it."""
    provider: str = ""
    """The provider whose account it is in; no other lists it."""
    offering: Offering | None = None
    """What the launch requested."""
    stopping: bool = False
    stopped: bool = False
    hidden_until: float = 0.0
    """Lists lack it until then: its removal was answered as if done."""


def offering_of(machine: CloudInstance) -> Offering:
    """The offering that a machine was launched from."""
    instance, asked = machine.instance, machine.offering
    return Offering(
        provider=machine.provider,
        region=instance.region,
        zone=instance.zone,
        instance_type=instance.instance_type,
        market=asked.market if asked is not None else "on-demand",
    )


@dataclass(slots=True)
class SimulatedCloud:
    """Every machine that exists."""

    simulation: SimulationContext
    idempotent: bool
    list_lag_seconds: float
    machines: dict[str, CloudInstance] = field(default_factory=dict)
    tokens: dict[str, Instance] = field(default_factory=dict)
    """Token -> the machine made last for it."""
    cut_off: set[str] = field(default_factory=set)
    """Instances whose launch was asked for by a process that was then cut off: it may come late."""
    sent: dict[str, float] = field(default_factory=dict)
    """Instance -> when its last launch was sent."""
    call_failures: list[CallFailure] = field(default_factory=list)
    asked: Counter[tuple[str, Offering]] = field(default_factory=Counter)
    """Pool and offering -> how many launches requested it, successful or not."""
    on_made: Callable[[Instance], None] = lambda _: None
    on_ending: Callable[[Instance], None] = lambda _: None
    on_gone: Callable[[Instance], None] = lambda _: None
    place: Callable[[Instance], Instance] = lambda made: made
    """Completes an instance's place and type where the launch leaves them open."""
    on_cut_off: Callable[[str, float], None] = lambda *_: None
    """Cuts a process off from the bus for so many seconds."""
    removing_until: float = 0.0
    """Until then no machine that is being removed is gone."""
    removals_lie_until: float = 0.0
    """Until then a removal is answered as if done, and its machine goes on."""
    unlists_on_lie: bool = False
    """Whether lists then lack the machine as well."""
    adopts: bool = False
    """Whether others make its machines, and Navarch only adopts them."""
    machines_max: dict[OfferingSelector, int] = field(default_factory=dict)
    """So many machines of these offerings exist at most, those that are being removed included."""
    quotas: dict[OfferingSelector, int] = field(default_factory=dict)
    """The account may have so many machines of these offerings, as the cloud reports."""
    place_elsewhere: Callable[[int], None] = lambda _: None
    """Places so many of the next machines in racks of their own."""
    ids: ListedIds = field(default_factory=ListedIds)
    on_rebooted: Callable[[Instance], None] | None = None
    """Set where the cloud can reboot a machine."""
    restarts_cold: bool = False
    """Whether it can switch its machines off and on."""
    made: int = 0
    _names: Counter[str] = field(default_factory=Counter)
    chance: Any = None

    def __post_init__(self) -> None:
        self.chance = self.simulation.chance("cloud")

    def instances(self) -> list[Instance]:
        """Every instance that is billed now."""
        return [each.instance for each in self.machines.values()]

    def count(self, name: str) -> int:
        """Return how many machines of a name exist."""
        return self._names[name]

    def running(self, name: str) -> int:
        """Return how many machines of a name exist and are not stopped."""
        named = (each for each in self.machines.values() if each.instance.name == name)
        return sum(not each.stopped for each in named)

    def call_failure(self, call: Call, about: Offering | None = None) -> CallFailure | None:
        """The failure of a call made now; `about`: the offering of a launch."""
        now = self.simulation.now()
        self.call_failures = [
            each for each in self.call_failures if not each.until or each.until > now
        ]
        for each in self.call_failures:
            if each.call == call and (about is None or each.selector.covers(about)):
                if not each.until:
                    self.call_failures.remove(each)
                return each
        return None

    def make(self, request: ProvisionRequest, offering: Offering) -> Instance:
        """Make a machine, or return the one made for this token, even if it is gone."""
        if self.idempotent and (known := self.tokens.get(request.token)):
            return known
        for selector, most in self.machines_max.items():
            if selector.covers(offering) and self.existing(selector) >= most:
                used = f"all {most} machines are in use or being removed"
                raise ProviderError("CAPACITY", f"simulated: {used}")
        for selector, most in self.quotas.items():
            if selector.covers(offering) and self.existing(selector) >= most:
                raise ProviderError("QUOTA", f"simulated: {most} of {most} used")
        plain = instance_for(request, f"sim-{self.made + 1:05d}")
        instance = self.place(
            msgspec.structs.replace(plain, status="running", created_at=self.simulation.clock.now())
        )
        self.add(instance)
        self.tokens[request.token] = instance
        self.on_made(instance)
        return instance

    def existing(self, selector: OfferingSelector) -> int:
        """Return how many machines of these offerings exist, with those that are being removed."""
        return sum(map(selector.covers, map(offering_of, self.machines.values())))

    def add(self, instance: Instance, provider: str = "") -> None:
        """A machine exists from now on."""
        self.made += 1
        lag = self.chance.random() * self.list_lag_seconds
        self.machines[instance.provider_id] = CloudInstance(
            instance, self.simulation.now() + lag, provider
        )
        self._names[instance.name] += 1
        self.simulation.note(f"cloud made {instance.name} as {instance.provider_id}")

    def end(self, provider_id: str) -> None:
        """Begin to remove a machine."""
        machine = self.machines.get(provider_id)
        if machine is None or machine.stopping:
            return
        if self.simulation.now() < self.removals_lie_until:
            machine.hidden_until = self.removals_lie_until if self.unlists_on_lie else 0.0
            self.simulation.note(f"cloud leaves {machine.instance.name} ({provider_id}) running")
            return
        machine.stopping = True
        self.simulation.note(f"cloud ends {machine.instance.name} ({provider_id})")
        self.on_ending(machine.instance)
        seconds = self.chance.random() * STOPPING_SECONDS_MAX
        asyncio.get_running_loop().call_later(seconds, self._removed, provider_id)

    def end_lies(self) -> None:
        """Remove from now on what it is asked to, and list every machine."""
        now = self.removals_lie_until = self.simulation.now()
        for each in self.machines.values():
            each.hidden_until = min(each.hidden_until, now)

    def lied_about(self, name: str) -> bool:
        """Return whether an absence may have been concluded from a list that was wrong."""
        hidden = (each.instance.name for each in self.machines.values() if each.hidden_until)
        return name in hidden or self.ids.lied(self.simulation.now())

    def _removed(self, provider_id: str) -> None:
        """A machine is gone, unless the cloud takes its time."""
        if self.simulation.now() < self.removing_until:
            asyncio.get_running_loop().call_later(SLOW_SECONDS, self._removed, provider_id)
        else:
            self.vanish(provider_id)

    def vanish(self, provider_id: str) -> None:
        """A machine is gone."""
        machine = self.machines.pop(provider_id, None)
        if machine is not None:
            self._names[machine.instance.name] -= 1
            self.simulation.note(f"cloud has {machine.instance.name} ({provider_id}) no more")
            self.on_gone(machine.instance)

    def real_id(self, provider: str, provider_id: str) -> str:
        """The machine that an ID means to a provider now."""
        return self.ids.real(provider_id, self.ids_at(provider), self.simulation.now())

    def ids_at(self, provider: str) -> list[str]:
        """Return the IDs of the machines of a provider."""
        return [key for key, each in self.machines.items() if each.provider == provider]

    def list_for(self, provider: str) -> list[Instance]:
        """The machines that a provider's list shows, under the IDs that it shows."""
        now, ids = self.simulation.now(), self.ids
        if now < ids.empty_until:
            return []
        listed = ids.listed(self.ids_at(provider), now)
        shown = [
            msgspec.structs.replace(each, provider_id=listed[each.provider_id])
            for each in self._shown_to(provider, now)
        ]
        return shown * 2 if now < ids.twice_until else shown

    def _shown_to(self, provider: str, now: float) -> list[Instance]:
        return [
            msgspec.structs.replace(
                each.instance, status="stopping" if each.stopping else "stopped"
            )
            if each.stopping or each.stopped
            else each.instance
            for each in self.machines.values()
            if max(each.shown_at, each.hidden_until) <= now and provider == each.provider
        ]


class SimulatedProvider:
    """The provider plugin: calls the simulated cloud."""

    class Options(Setting, frozen=True, kw_only=True):
        """No options: faults are injected."""

    def __init__(self, *, options: Options, environment: Environment) -> None:
        del options
        self.name = environment.name
        parts = CURRENT_SIMULATION.get().parts
        self._cloud: SimulatedCloud = parts.get(f"cloud/{environment.name}") or parts["cloud"]
        self._process = current_process()

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities of this simulation's cloud."""
        return Capabilities(
            idempotency_token=self._cloud.idempotent,
            spot=True,
            reserved=True,
            list_lag_seconds=self._cloud.list_lag_seconds,
            reboot=self._cloud.on_rebooted is not None,
            adopts=self._cloud.adopts,
            fixed_capacity=bool(self._cloud.machines_max),
        )

    async def _take_time(self) -> None:
        await asyncio.sleep(self._cloud.chance.random() * CALL_SECONDS_MAX / 2)
        await self._process.alive()

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Make a machine, or return the one made for this token."""
        self._cloud.sent[request.name] = self._cloud.simulation.now()
        offering = Offering(
            provider=self.name,
            region=request.region,
            zone=request.zone,
            instance_type=request.instance_type,
            market=request.market or self.capabilities.market,
        )
        arriving = asyncio.get_running_loop().create_task(
            self._arrive(request, offering), context=_outside()
        )
        try:
            call_failure, made = await asyncio.shield(arriving)
        except asyncio.CancelledError:
            if not arriving.done() and not self._process.dead:
                self._cloud.cut_off.add(request.name)  # it has left, and cannot be stopped
            raise
        await self._fail(call_failure, "before", "hang")
        if call_failure is not None and call_failure.effect == "cut-off":
            self._cloud.cut_off.add(request.name)
            self._cloud.on_cut_off(self._process.name, call_failure.seconds)
            await asyncio.sleep(call_failure.seconds)
            await self._process.alive()
        if made is None:
            made = self._make(request, offering)
        await self._process.effect("a launch")
        await self._take_time()
        await self._fail(call_failure, "after", "hang-after")
        answer = self._cloud.ids.answer(made.provider_id, self._cloud.ids_at(self.name))
        return msgspec.structs.replace(made, provider_id=answer)

    async def _arrive(
        self, request: ProvisionRequest, offering: Offering
    ) -> tuple[CallFailure | None, Instance | None]:
        """Bring a request to the cloud, whatever its sender does meanwhile; return what it makes.

        That of a process that has died meanwhile is lost with it, and so is what fails.
        """
        await asyncio.sleep(self._cloud.chance.random() * CALL_SECONDS_MAX / 2)
        if self._process.dead:
            return None, None
        self._cloud.asked[request.pool, offering] += 1
        failure = self._cloud.call_failure("provision", offering)
        if failure is not None and failure.effect in BEFORE:
            return failure, None
        return failure, self._make(request, offering)

    def _make(self, request: ProvisionRequest, offering: Offering) -> Instance:
        made = self._cloud.make(request, offering)
        machine = self._cloud.machines.get(made.provider_id)
        if machine is not None and machine.provider != self.name:
            machine.provider, machine.offering = self.name, offering
        return made

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove a machine."""
        await self._take_time()
        call_failure = self._cloud.call_failure("terminate")
        await self._fail(call_failure, "before", "hang")
        self._cloud.end(self._cloud.real_id(self.name, provider_id))
        await self._process.effect("a termination")
        await self._take_time()
        await self._fail(call_failure, "after", "hang-after")

    async def reboot(self, instance: Instance) -> None:
        """Reboot a machine."""
        await self._take_time()
        existing = {each.provider_id for each in self._cloud.instances()}
        real = self._cloud.real_id(self.name, instance.provider_id)
        if self._cloud.on_rebooted is None or real not in existing:
            raise ProviderError("INVALID", f"there is no instance {instance.provider_id} to reboot")
        instance = self._cloud.machines[real].instance
        self._cloud.on_rebooted(instance)
        await self._process.effect("a reboot")
        await self._take_time()

    def can_restart_cold(self, instance: Instance) -> bool:
        """Return whether machines can be switched off and on: all, or none."""
        del instance
        return self._cloud.restarts_cold

    async def restart_cold(self, instance: Instance) -> None:
        """Switch a machine off and on."""
        await self.reboot(instance)

    async def list(self) -> list[Instance]:
        """Every machine but those too new to be listed."""
        await self._take_time()
        await self._fail(self._cloud.call_failure("list"), "before", "hang")
        return self._cloud.list_for(self.name)

    async def quotas(self, offerings: Sequence[Offering]) -> Sequence[OfferingQuota]:
        """The quotas of these offerings, if there are any."""
        return [
            OfferingQuota(
                region=each.region,
                instance_type=each.instance_type,
                market=each.market,
                quota=f"MACHINES of {each.provider}",
                limit=most,
                used=self._cloud.existing(selector),
            )
            for each in offerings
            for selector, most in self._cloud.quotas.items()
            if selector.covers(each)
        ]

    async def close(self) -> None:
        """Nothing to close."""

    async def _fail(
        self, call_failure: CallFailure | None, failing: Effect, hanging: Effect
    ) -> None:
        if call_failure is None:
            return
        if call_failure.effect == hanging:
            await asyncio.Event().wait()
        if call_failure.effect == failing:
            where = f" ({call_failure.selector})" if str(call_failure.selector) else ""
            raise ProviderError(call_failure.kind, f"simulated{where}, {failing} its effect")


def _outside() -> contextvars.Context:
    """The context of what happens outside of every simulated process."""
    context = contextvars.copy_context()
    context.run(TASK_OWNER.set, None)
    return context
