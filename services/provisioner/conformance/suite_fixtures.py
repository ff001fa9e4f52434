"""Fixtures of the suite, which a plugin's author may override, and calls with a time limit."""

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import pytest
import pytest_asyncio

from schemas.enums import ProviderErrorKind
from schemas.saga_params import LaunchSpec
from services.provisioner.instances import instance_decisions
from services.provisioner.provider_client.provider import (
    Environment,
    Instance,
    Provider,
    ProvisionRequest,
)

MakeProvider = Callable[[], Provider]
MakeRequest = Callable[..., ProvisionRequest]
"""Makes a request: for a node, with changes."""
Refusal = tuple[Mapping[str, Any], ProviderErrorKind]

T = TypeVar("T")

FLEET: Final = "fleet-one"
OTHER_FLEET: Final = "fleet-two"
POOL: Final = "web"
LOOK_AGAIN_SECONDS: Final = 0.1


class CallCancellation:
    """Drives a call from await to await, and cancels it at one of them.

    A call is driven by hand from one await to the next, so that every point of cancellation is
    reached once.
    """

    def __init__(self, call: Coroutine[Any, Any, Any], point: int) -> None:
        """Cancel it at its await number `point`, counted from one."""
        self._call = call
        self._point = point
        self.reached = False
        """Whether the call had as many awaits."""

    async def run(self) -> None:
        """Drive it to the cut or its end, in its own task, which is then cancelled."""
        await drive_call(self._call, self._at)

    def _at(self, awaits: int) -> None:
        task = asyncio.current_task()
        if awaits == self._point and task is not None:
            self.reached = True
            task.cancel()


@types.coroutine
def drive_call(
    call: Coroutine[Any, Any, Any], at: Callable[[int], None]
) -> Generator[Any, Any, Any]:
    """Pass on what a call awaits, report the count of awaits at each, and return its result."""
    awaits: int = 0
    error: BaseException | None = None
    while True:
        try:
            awaited = call.send(None) if error is None else call.throw(error)
        except StopIteration as ended:
            return ended.value
        awaits, error = awaits + 1, None
        at(awaits)
        try:
            yield awaited
        except BaseException as raised:  # noqa: BLE001 - passed to the call
            error = raised


def environment(data_dir: Path, name: str = "acme") -> Environment:
    """Return the environment of a plugin; nothing listens at the bus's address."""
    return Environment(name=name, fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=data_dir)


def request_maker(asks: Mapping[str, Any]) -> MakeRequest:
    """Makes requests that say this: for a node, with changes."""

    def request(name: str = "web-1", **changes: Any) -> ProvisionRequest:
        plain = {
            "name": name,
            "fleet": FLEET,
            "pool": POOL,
            "node": name,
            "token": instance_decisions.launch_token(str(changes.get("fleet", FLEET)), POOL, name),
            "instance_type": "h100",
        }
        return ProvisionRequest(**(plain | dict(asks) | changes))

    return request


class SuiteFixtures:
    """Holds what a plugin's author may override, and the calls that the tests make."""

    pytestmark: ClassVar[Any] = pytest.mark.asyncio

    many: ClassVar[int] = 6
    """Instances of a whole list: more than one page, where the cloud has pages."""
    seconds_max: ClassVar[float] = 30.0
    """How long any one call may take."""
    gone_seconds_max: ClassVar[float] = 0.0
    """How long what was removed may still be listed; a local server needs none."""
    listed_seconds_max: ClassVar[float] = 0.0
    """How long what was launched may be missing from the list; a local server needs none."""
    _launched_at: float = 0.0

    @pytest.fixture
    def make(self) -> MakeProvider:
        """Constructs the provider, always on the same account: write this one yourself."""
        raise NotImplementedError("write a fixture `make` that returns what makes the provider")

    @pytest.fixture
    def asks(self) -> Mapping[str, Any]:
        """Return what a request must say for your cloud: `{"instance_type": …, "region": …}`."""
        return {}

    @pytest.fixture
    def refused(self) -> tuple[Refusal, ...]:
        """Requests that the provider must refuse, and as what: `({"region": ""}, "INVALID")`."""
        return ()

    @pytest.fixture
    def make_unreachable(self) -> MakeProvider | None:
        """Makes the provider where nothing answers; None: it has nothing that must answer."""
        return None

    @pytest_asyncio.fixture
    async def fresh(self, make: MakeProvider) -> AsyncIterator[MakeProvider]:
        """Yield a function that does what `make` does; what it has made is closed at the end."""
        made: list[Provider] = []

        def again() -> Provider:
            made.append(make())
            return made[-1]

        yield again
        for each in made:
            await each.close()

    @pytest.fixture
    def wanted(self, asks: Mapping[str, Any]) -> MakeRequest:
        """Makes a request: for this node, with these changes."""
        return request_maker(asks)

    async def _bounded(self, call: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wait_for(call, self.seconds_max)

    async def _launch(self, provider: Provider, asked: ProvisionRequest) -> Instance:
        """Call `provision`; a list from now on may lack the instance for a time."""
        made = await self._bounded(provider.provision(asked))
        self._launched_at = asyncio.get_running_loop().time()
        return made

    async def _listed(self, provider: Provider) -> list[Instance]:
        """Return the listed instances, without those that are being removed."""
        shown_at = self._launched_at + self.listed_seconds_max
        await asyncio.sleep(max(0.0, shown_at - asyncio.get_running_loop().time()))
        listed = await self._bounded(provider.list())
        return [each for each in listed if each.status != "stopping"]

    async def _again(self, provider: Provider, asked: ProvisionRequest) -> Instance:
        """Ask after a doubt, as the provisioner does: it waits until a list would show it."""
        if not provider.capabilities.idempotency_token:
            await asyncio.sleep(provider.capabilities.list_lag_seconds)
            found = instance_decisions.find_adoptable(
                record_of(asked), await self._listed(provider)
            )
            if found is not None:
                return found
        return await self._launch(provider, asked)

    async def _remove(self, provider: Provider, provider_id: str) -> None:
        await self._bounded(provider.terminate(provider_id))
        await self._until_gone(provider, provider_id)

    async def _until_gone(self, provider: Provider, provider_id: str = "") -> None:
        """Look until the list does not show it any more; nothing at all where no id is given."""
        until = asyncio.get_running_loop().time() + self.gone_seconds_max
        while True:
            listed = await self._bounded(provider.list())
            left = [each.provider_id for each in listed if provider_id in {"", each.provider_id}]
            if not left:
                return
            assert asyncio.get_running_loop().time() < until, f"removed, and still listed: {left}"
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _cut(self, call: Coroutine[Any, Any, Any], point: int) -> bool:
        """Cancel a call at its n-th await; False where it has fewer, and so has ended."""
        cutting = CallCancellation(call, point)
        task = asyncio.ensure_future(cutting.run())
        done, _ = await asyncio.wait({task}, timeout=self.seconds_max)
        assert done, f"still runs {self.seconds_max:g} s after it was cancelled at await {point}"
        if cutting.reached:
            assert task.cancelled(), f"cancelled at await {point}, it went on or raised otherwise"
        else:
            task.result()
        return cutting.reached


def record_of(asked: ProvisionRequest) -> Any:
    """Return the record that the provisioner has written before it sends this request."""
    launch = LaunchSpec(fleet=asked.fleet, provider="", instance_type=asked.instance_type)
    return instance_decisions.intended_record(asked.pool, asked.name, launch, "", datetime.now(UTC))
