"""A workload system that carries out no orders is reported by name, and its end too."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from services.notifier.workload.workload_notifier import StepFailure
from services.notifier.workload_availability import (
    OVER_SECONDS,
    REPORTED_SECONDS,
    WorkloadAvailability,
)
from services.runtime.failure_register import FailureRegister
from services.simulator.engine.virtual_time import VirtualClock, run


async def fails(reason: str = "connection refused") -> None:
    """An order that cannot be carried out."""
    raise ConnectionError(reason)


async def works() -> None:
    """One that is."""


async def refuses() -> None:
    """One that is refused."""
    raise StepFailure("no such node", "INVALID")


class Watched:
    """An availability, and what it has reported."""

    def __init__(self) -> None:
        """Report to a register of its own."""
        self.register = FailureRegister(CollectorRegistry())
        self.availability = WorkloadAvailability(VirtualClock(), self.register)

    @property
    def reported(self) -> list[tuple[str, str]]:
        """Return which systems are reported, and why."""
        return [(each.about, each.reason) for each in self.register.current]

    async def fail_for(self, seconds: float) -> None:
        """An order is repeated for so long."""
        for _ in range(int(seconds)):
            with pytest.raises(ConnectionError):
                await self.availability.observed("slurm", fails())
            await asyncio.sleep(1.0)


def test_what_lasts_is_reported_until_an_order_is_carried_out() -> None:
    """The report names the system's notifier; a failure that lasts for a moment is not reported."""

    async def whole() -> None:
        watched = Watched()
        task = asyncio.create_task(watched.availability.run())
        await watched.fail_for(REPORTED_SECONDS - 10)
        assert watched.reported == []
        await watched.fail_for(20)
        [(about, reason)] = watched.reported
        assert about == "workload system slurm"
        assert reason.endswith("UTC: connection refused")
        await watched.availability.observed("other", works())
        await asyncio.sleep(6.0)
        assert watched.reported
        await watched.availability.observed("slurm", works())
        await asyncio.sleep(6.0)
        assert watched.reported == []
        task.cancel()

    run(whole)


def test_a_refusal_is_an_answer_and_no_answer_is_a_failure() -> None:
    """The failure is over also when no further order is sent: nothing is known any more."""

    async def whole() -> None:
        watched = Watched()
        task = asyncio.create_task(watched.availability.run())
        await watched.fail_for(REPORTED_SECONDS + 10)
        with pytest.raises(StepFailure):
            await watched.availability.observed("slurm", refuses())
        await asyncio.sleep(6.0)
        assert watched.reported == []
        hanging = asyncio.create_task(
            watched.availability.observed("slurm", asyncio.sleep(REPORTED_SECONDS * 3))
        )
        await asyncio.sleep(REPORTED_SECONDS + 10)
        assert watched.reported[0][1].endswith("it does not answer")
        hanging.cancel()
        await asyncio.sleep(OVER_SECONDS + 10)
        assert watched.reported == []
        task.cancel()

    run(whole)
