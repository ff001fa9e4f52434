"""Tests the contract of a scheduler: the author of a plugin runs them with pytest.

    import pytest
    from navarch.services.provisioner.offerings.scheduler_conformance import SchedulerConformance

    class TestGreen(SchedulerConformance):
        @pytest.fixture
        def make(self):
            return lambda: Green(options=Green.Options())

They need pytest and pytest-asyncio (`navarch[conformance]`).
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

import pytest

from schemas.plugin_kinds import SCHEDULER
from schemas.settings import Setting
from services.provisioner.offerings.scheduler import LaunchOption, Scheduler

AT_ONCE: Final = 16
BARE: Final = LaunchOption(pool="training", provider="acme", instance_type="t")
FULL: Final = LaunchOption(
    pool="training",
    provider="acme",
    kind="acme",
    region="north",
    zone="north-1",
    instance_type="8x-h100",
    market="spot",
    position=3,
    gpus=8,
    gpu="H100",
    dollars_per_hour=31.5,
    price_age_seconds=7_200.0,
    instances=40,
    failures=9,
    reported_available=False,
)
"""Offerings of which nothing is known, and everything."""


class SchedulerConformance:
    """Inherit, name the class `Test…`, and write the fixture `make`."""

    @pytest.fixture
    def make(self) -> Callable[[], Scheduler]:
        """Return what makes the scheduler."""
        raise NotImplementedError("write the fixture `make`: see the module's first lines")

    def test_its_options_are_a_struct(self, make: Callable[[], Scheduler]) -> None:
        """An error in the configuration names file, line and key."""
        options = getattr(type(make()), "Options", None)
        assert options is not None, "it has no inner struct `Options`"
        assert issubclass(options, Setting), "Options is no schemas.settings.Setting"

    @pytest.mark.parametrize("option", [BARE, FULL], ids=["bare", "full"])
    async def test_each_offering_has_a_finite_score(
        self, make: Callable[[], Scheduler], option: LaunchOption
    ) -> None:
        """The score is a number, whatever is not known of the offering, and comes in time."""
        async with asyncio.timeout(SCHEDULER.call_seconds):
            found = await make().score(option)
        assert isinstance(found, int | float), f"{found!r} is no number: {option}"
        assert math.isfinite(found), f"{found} is not finite: {option}"

    async def test_the_same_offering_has_the_same_score(
        self, make: Callable[[], Scheduler]
    ) -> None:
        """Replicas and restarts rank alike, whatever was asked before."""
        one, fresh = make(), make()
        first = [await one.score(each) for each in (BARE, FULL)]
        again = [await one.score(each) for each in (FULL, BARE)][::-1]
        assert first == again, "it remembers what it was asked before"
        assert first == [await fresh.score(each) for each in (BARE, FULL)]

    async def test_questions_at_once_are_answered(self, make: Callable[[], Scheduler]) -> None:
        """A launch scores its offerings side by side."""
        one = make()
        async with asyncio.timeout(SCHEDULER.call_seconds):
            found = await asyncio.gather(*(one.score(FULL) for _ in range(AT_ONCE)))
        assert len(set(found)) == 1, f"different scores at once: {found}"
