"""A provider without machines, with faults to order: for tests, simulations and trying things out.

It keeps the contract exactly, and breaks it exactly as told: no capacity, an answer lost after the
launch took effect, a termination refused, a new instance missing from the list for a while. In a
file it survives its provisioner, and is shared by all replicas on the host.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec.structs import replace

from schemas.reasons import ProviderErrorKind
from schemas.settings import Setting
from services.provisioner.errors import ProviderError
from services.provisioner.provider import Capabilities, Environment, Instance, ProvisionRequest

Call = Literal["provision", "terminate", "list", "reboot"]

CALLS_KEPT_MAX: Final = 10_000


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault to order."""

    call: Call
    kind: ProviderErrorKind = "TRANSIENT"
    times: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    instance: str = ""
    """Only for this one; empty: for any."""
    zone: str = ""
    """Only in this zone; empty: in any."""
    after_success: bool = False
    """The call takes effect, and its answer is lost."""
    hang: bool = False
    """No answer ever comes."""
    retry_after: float | None = None


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """An instance, and how many lists will not show it yet."""

    instance: Instance
    hidden: int = 0


class _State(msgspec.Struct, kw_only=True):
    """All that the provider remembers."""

    serial: int = 0
    made: dict[str, _Made] = {}
    orders: list[Order] = []
    calls: list[tuple[str, str]] = []


class FakeProvider:
    """Instances that exist by name only."""

    class Options(Setting, frozen=True, kw_only=True):
        """What the configuration may say."""

        gpu_count: Annotated[int, msgspec.Meta(ge=0, le=64)] = 8
        file: str = ""
        """Where to remember; empty: in memory."""
        idempotent: bool = True
        """Whether a repeated token makes nothing new; real clouds differ."""
        list_lag_calls: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
        """So many lists do not show a new instance yet."""
        list_lag_seconds: Annotated[float, msgspec.Meta(ge=0, le=600)] = 0.0
        """What the provider says of its lag."""
        reboots: bool = True
        """Whether it can reboot an instance; real clouds differ."""
        dollars_per_hour: float = 0.0
        latency_seconds: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0
        """How long a launch and a termination take: half before their effect, half after."""
        faults: tuple[Order, ...] = ()

    def __init__(self, *, options: Options, environment: Environment) -> None:
        """Begin with nothing, or with what the file holds."""
        self._options = options
        self._name = environment.name
        self._path = Path(options.file) if options.file else None
        self._memory = _State(orders=list(options.faults))
        self._never = asyncio.Event()

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """As the options say."""
        return Capabilities(
            idempotency_token=self._options.idempotent,
            list_lag_seconds=self._options.list_lag_seconds,
            reboot=self._options.reboots,
        )

    def order(self, fault: Order) -> None:
        """Order one more fault."""
        with self._state() as state:
            state.orders.append(fault)

    def calls(self, call: Call) -> list[str]:
        """What was asked so far, oldest first: names for provision, else ids."""
        with self._state() as state:
            return [about for made, about in state.calls if made == call]

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Make an instance, or the one that this token has made already."""
        await self._take_time()
        with self._state() as state:
            _log(state, "provision", request.name)
            order = _take(state, "provision", request.name, request.zone)
            made = None
            if order is None or order.after_success:
                made = self._make(state, request)
        await self._take_time()
        await self._fail(order)
        assert made is not None
        return made

    def _make(self, state: _State, request: ProvisionRequest) -> Instance:
        if self._options.idempotent:
            for each in state.made.values():
                if each.instance.token == request.token:
                    return each.instance
        state.serial += 1
        instance = Instance(
            name=request.name,
            provider_id=f"{self._name}-{state.serial:06d}",
            status="running",
            fleet=request.fleet,
            pool=request.pool,
            token=request.token,
            instance_type=request.instance_type,
            region=request.region,
            zone=request.zone,
            created_at=datetime.now(UTC),
            dollars_per_hour=self._options.dollars_per_hour,
            tags={**request.labels, "gpus": str(request.gpu_count or self._options.gpu_count)},
        )
        made = _Made(instance=instance, hidden=self._options.list_lag_calls)
        state.made[instance.provider_id] = made
        return instance

    async def terminate(self, provider_id: str) -> None:
        """Remove an instance; success where there is none."""
        await self._take_time()
        with self._state() as state:
            _log(state, "terminate", provider_id)
            made = state.made.get(provider_id)
            order = _take(state, "terminate", made.instance.name if made else "", "")
            if order is None or order.after_success:
                state.made.pop(provider_id, None)
        await self._take_time()
        await self._fail(order)

    async def reboot(self, instance: Instance) -> None:
        """Reboot an instance: nothing runs there, so it is only noted."""
        await self._take_time()
        with self._state() as state:
            _log(state, "reboot", instance.provider_id)
            order = _take(state, "reboot", instance.name, "")
            there = instance.provider_id in state.made
        await self._fail(order)
        if not there:
            raise ProviderError("INVALID", f"there is no instance {instance.provider_id}")

    async def list(self) -> list[Instance]:
        """Every instance, but those that are too new to show."""
        shown: list[Instance] = []
        with self._state() as state:
            _log(state, "list", "")
            order = _take(state, "list", "", "")
            if order is None:
                shown = [each.instance for each in state.made.values() if not each.hidden]
                state.made = {
                    key: replace(each, hidden=max(each.hidden - 1, 0))
                    for key, each in state.made.items()
                }
        await self._fail(order)
        return shown

    async def close(self) -> None:
        """Nothing is held."""

    async def _take_time(self) -> None:
        if self._options.latency_seconds:
            await asyncio.sleep(self._options.latency_seconds / 2)

    async def _fail(self, order: Order | None) -> None:
        if order is None:
            return
        if order.hang:
            await self._never.wait()
        raise ProviderError(order.kind, f"ordered for {order.call}", retry_after=order.retry_after)

    @contextlib.contextmanager
    def _state(self) -> Iterator[_State]:
        """The state, for one change at a time; on file, across processes too."""
        if self._path is None:
            yield self._memory
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = _read(self._path, self._memory.orders)
            yield state
            fresh = self._path.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(state))
            os.replace(fresh, self._path)  # noqa: PTH105 - the one call that is atomic by contract


def _read(path: Path, orders: "list[Order]") -> _State:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_State)
    except FileNotFoundError:
        return _State(orders=list(orders))


def _log(state: _State, call: Call, about: str) -> None:
    state.calls.append((call, about))
    del state.calls[:-CALLS_KEPT_MAX]


def _take(state: _State, call: Call, instance: str, zone: str) -> Order | None:
    """The first fault ordered for this call, used up by one."""
    for index, order in enumerate(state.orders):
        wanted = order.call == call and order.instance in {"", instance}
        if wanted and order.zone in {"", zone}:
            rest: list[Any] = [replace(order, times=order.times - 1)] if order.times > 1 else []
            state.orders[index : index + 1] = rest
            return order
    return None
