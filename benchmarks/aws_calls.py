"""`python -m benchmarks.aws_calls`: calls to launch and terminate 68 nodes at a throttled EC2.

The provisioner's steps run with shipped settings over a real nats-server; EC2 is moto in a process
of its own, which answers RequestLimitExceeded by token buckets: five RunInstances and
TerminateInstances at once, two a second. moto comes with the packages for tests.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import uvloop

from benchmarks.served import serving
from schemas.instance_type_catalogue import InstanceTypes
from schemas.messages import encode
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import AgentSettings, NatsSettings
from schemas.step_data import ProvisionInputs, TerminateInputs
from schemas.topology import POOLS
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.launch.gang_barrier import GangBarrier
from services.provisioner.offerings.offering_allocator import OfferingAllocator
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.offerings.offering_scorer import OfferingScorer
from services.provisioner.offerings.offering_store import OfferingStore
from services.provisioner.offerings.placements import Placements
from services.provisioner.offerings.scheduler_plugins import Schedulers
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.provider_client.rate_limit import SharedRateLimiter
from services.provisioner.providers.aws import AwsProvider
from services.provisioner.saga_step_handlers import SagaStepHandlers
from services.provisioner.time_limits import TimeLimits
from services.saga.participant import Command, StepFailure

NODES: Final = 68
BUCKET: Final = (5.0, 2.0)
"""Burst and requests per second, of each of the two calls."""
IMAGE: Final = "ami-03cf127a"
STEP_SECONDS: Final = 600.0
SETTLED_SECONDS_MAX: Final = 900.0

Counts = dict[str, dict[str, int]]


async def measure(nodes: int = NODES) -> dict[str, Any]:
    """Launch that many nodes at once, then terminate them at once."""
    os.environ.update(AWS_ACCESS_KEY_ID="bench", AWS_SECRET_ACCESS_KEY="bench")
    with _throttled_moto() as url:
        async with serving(sync=False) as (_, bus, _):
            await bus.put(POOLS, FLEET_KEY, encode(FleetRecord(id="bench")))
            return await _measure_at(url, bus, nodes)


async def _measure_at(url: str, bus: NatsBus, nodes: int) -> dict[str, Any]:
    provider = AwsProvider(
        options=AwsProvider.Options(region="us-east-1", image=IMAGE, endpoint_url=url),
        environment=Environment(
            name="aws",
            fleet="bench",
            nats_url="",
            data_dir=Path(),
            rate_limiter=partial(SharedRateLimiter, bus, SystemClock()),
        ),
    )
    steps = _handlers(bus, provider)
    names = [f"node-{number}" for number in range(nodes)]
    try:
        async with httpx.AsyncClient(base_url=url) as moto:
            limits = dict.fromkeys(("RunInstances", "TerminateInstances"), BUCKET)
            launched = await _counted(moto, limits, lambda: _launch(steps, names))
            running = len(await provider.list())
            removed = await _counted(moto, limits, lambda: _terminate(steps, names))
            left = len(await provider.list())
    finally:
        await provider.close()
    return {"nodes": nodes, "launched": running, "left": left, "up": launched, "down": removed}


async def _counted(
    moto: httpx.AsyncClient, limits: dict[str, Any], work: Callable[[], Awaitable[int]]
) -> dict[str, Any]:
    (await moto.put("/throttle", json=limits)).raise_for_status()
    started = time.perf_counter()
    async with asyncio.timeout(SETTLED_SECONDS_MAX):
        failed = await work()
    seconds = time.perf_counter() - started
    calls: Counts = (await moto.get("/throttle")).json()
    return {"seconds": round(seconds, 1), "steps_failed": failed, "calls": calls}


async def _launch(steps: SagaStepHandlers, names: list[str]) -> int:
    spec = LaunchSpec(fleet="bench", provider="aws", instance_type="p5.48xlarge", gpu_count=8)
    inputs = [
        ProvisionInputs(pool="web", node=each, launch=spec, timeout_seconds=STEP_SECONDS)
        for each in names
    ]
    return await _all(steps.provision(_command("up", "provision", each)) for each in inputs)


async def _terminate(steps: SagaStepHandlers, names: list[str]) -> int:
    inputs = [TerminateInputs(pool="web", node=each) for each in names]
    return await _all(steps.terminate(_command("down", "terminate", each)) for each in inputs)


async def _all(work: Iterator[Awaitable[Any]]) -> int:
    """Await all of it; return how many steps failed."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException) and not isinstance(each, StepFailure):
            raise each
    return sum(isinstance(each, StepFailure) for each in done)


def _command(saga: str, step: str, inputs: ProvisionInputs | TerminateInputs) -> Command:
    name = f"{saga}-{inputs.node}"
    return Command(saga=name, step=step, inputs=msgspec.to_builtins(inputs), id=f"{name}.{step}")


def _handlers(bus: NatsBus, provider: AwsProvider) -> SagaStepHandlers:
    clock, store, limits = SystemClock(), InstanceStore(bus), TimeLimits()
    calls = Providers(
        {"aws": ProviderCalls(provider, call_timeout_seconds=limits.call_timeout_seconds)}
    )
    scorer = OfferingScorer(store, clock, OfferingCatalogue(InstanceTypes(), calls.traits()))
    offerings = OfferingStore(bus, clock)
    placements = Placements(clock, store, offerings)
    schedulers = Schedulers({}, None)
    allocator = OfferingAllocator(bus, clock, store, offerings, scorer, schedulers, placements)
    gangs = GangBarrier(clock, store, offerings, placements)
    templates = BootstrapTemplates(NatsSettings(), AgentSettings(), Path())
    return SagaStepHandlers(
        *(bus, clock, store, calls, limits, templates, allocator, gangs, offerings, "")
    )


@contextmanager
def _throttled_moto() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.provisioner.moto_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    print(json.dumps(uvloop.run(measure(parser.parse_args().nodes)), indent=2))


if __name__ == "__main__":
    main()
