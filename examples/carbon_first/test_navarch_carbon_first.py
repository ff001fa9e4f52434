"""Runs Navarch's suite for schedulers, and ranks offerings."""

from collections.abc import Callable

import msgspec
import pytest
from navarch.services.provisioner.offerings.scheduler import LaunchOption
from navarch.services.provisioner.offerings.scheduler_conformance import SchedulerConformance
from navarch_carbon_first import CarbonFirst

GRAMS = {"eu-north": 20, "us-west": 120, "us-west-2": 95}


def scheduler() -> CarbonFirst:
    """Return the scheduler with a table of three entries."""
    return CarbonFirst(options=msgspec.convert({"grams": GRAMS}, CarbonFirst.Options))


def option(region: str, dollars: float | None, gpus: int = 8) -> LaunchOption:
    """Return an offering in a region, at a price."""
    return LaunchOption(
        pool="training",
        provider="acme",
        instance_type="t",
        region=region,
        gpus=gpus,
        dollars_per_hour=dollars,
    )


class TestCarbonFirst(SchedulerConformance):
    """Asks about offerings of which nothing is known, and everything."""

    @pytest.fixture
    def make(self) -> Callable[[], CarbonFirst]:
        """Return what makes the scheduler."""
        return scheduler


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (option("eu-north-1", 900.0), option("us-west-2", 1.0)),
        (option("us-west-2", 50.0), option("us-west-1", 1.0)),
        (option("us-west-1", None), option("ap-south-1", 1.0)),
        (option("us-west-2", 16.0), option("us-west-2", 24.0)),
        (option("us-west-2", 30.0, gpus=8), option("us-west-2", 16.0, gpus=4)),
        (option("us-west-2", 900.0), option("us-west-2", None)),
    ],
    ids=["cleaner", "longest-entry", "in-the-table", "cheaper", "cheaper-gpu", "known-price"],
)
async def test_carbon_decides_before_the_price(better: LaunchOption, worse: LaunchOption) -> None:
    """A cleaner region is preferred at any price, and the cheaper GPU in the same region."""
    found = scheduler()
    assert await found.score(better) > await found.score(worse)


def test_a_table_with_a_wrong_figure_is_refused() -> None:
    """Options are checked before the plugin is made: grams are whole and not negative."""
    with pytest.raises(msgspec.ValidationError, match=r"\$\.grams"):
        msgspec.convert({"grams": {"eu-north": -1}}, CarbonFirst.Options)
