"""Schedulers are tested: the built-in strategies, a plugin, and the effect of a defective one."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.launch_offers import Choice, Offer
from schemas.plugin_kinds import SCHEDULER
from schemas.settings import PluginSettings, PoolSpec, Setting
from services.primitives.errors import ConfigurationError
from services.provisioner.offerings import scheduler_plugins
from services.provisioner.offerings.scheduler import LaunchOption, Scheduler
from services.provisioner.offerings.scheduler_plugins import Schedulers
from services.provisioner.offerings.strategies import STRATEGIES
from services.runtime.plugin_host import PluginHost
from services.settings.settings_file import load_settings


class Green:
    """A plugin: some regions are greener than others."""

    class Options(Setting, frozen=True, kw_only=True):
        """Give each region's grams of carbon dioxide per kilowatt hour."""

        grams: dict[str, float]

    def __init__(self, *, options: Options) -> None:
        """Know the grams."""
        self._grams = options.grams

    async def score(self, option: LaunchOption) -> float:
        """Return a higher score for fewer grams."""
        await asyncio.sleep(0)
        return -self._grams.get(option.region, 1000.0)


class Broken:
    """Raises, never answers, or says what is no number."""

    class Options(Setting, frozen=True, kw_only=True):
        """Name the way in which the scheduler breaks."""

        how: str = "raise"

    def __init__(self, *, options: Options) -> None:
        """Fail in the given way."""
        self._how = options.how

    async def score(self, option: LaunchOption) -> float:
        """Break in the way that the options name."""
        del option
        if self._how == "raise":
            raise RuntimeError("no score today")
        if self._how == "hang":
            await asyncio.Event().wait()
        return float("nan")


GREEN = f"{__name__}:Green"
BROKEN = f"{__name__}:Broken"

EVERY: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in STRATEGIES},
    "cost by the GPU": ("cost", {"per_gpu": True}),
    "a plugin": (GREEN, {"grams": {"north": 20.0}}),
}


def option(position: int, **changes: Any) -> LaunchOption:
    """An offering to score."""
    plain: dict[str, Any] = {
        "pool": "web",
        "provider": "aws",
        "kind": "aws",
        "region": "south",
        "instance_type": "p5.48xlarge",
        "position": position,
        "gpus": 8,
        "dollars_per_hour": 50.0,
    }
    return LaunchOption(**(plain | changes))


def chosen(strategy: str, options: dict[str, Any]) -> Scheduler:
    """The scheduler of a launch with this strategy, which a pool of the configuration has."""
    offers = (Offer(provider="aws", instance_type="t"),)
    choice = Choice(offers=offers, strategy=strategy, strategy_options=options)
    found: Scheduler = Schedulers({"web": pool_with(strategy, options)}, None).of(choice).plugin
    return found


def pool_with(strategy: str, options: dict[str, Any]) -> PoolSpec:
    """Return a pool with this strategy."""
    named = PluginSettings(type=strategy, options=options)
    return PoolSpec(provider="aws", instance_type="t", min_nodes=0, max_nodes=1, strategy=named)


@pytest.mark.parametrize(("strategy", "options"), EVERY.values(), ids=EVERY)
async def test_a_scheduler_says_the_same_of_the_same(
    strategy: str, options: dict[str, Any]
) -> None:
    """A plugin must score with a number, the same each time, whatever is not known."""
    scheduler = chosen(strategy, options)
    bare = LaunchOption(pool="web", provider="x", instance_type="t")
    full = option(3, price_age_seconds=4.0, reported_available=False, failures=7, instances=2)
    for each in (bare, full):
        first = await scheduler.score(each)
        assert first == await scheduler.score(each)
        assert isinstance(first, float)
        assert abs(first) < float("inf")


BEST: dict[str, tuple[str, dict[str, Any], list[LaunchOption], int]] = {
    "priority": ("priority", {}, [option(1), option(0)], 1),
    "cost": ("cost", {}, [option(0), option(1, dollars_per_hour=40.0)], 1),
    "cost, unknown last": ("cost", {}, [option(0, dollars_per_hour=None), option(1)], 1),
    "cost by the GPU": (
        "cost",
        {"per_gpu": True},
        [option(0, dollars_per_hour=7.0, gpus=1), option(1)],
        1,
    ),
    "availability": ("availability", {}, [option(0, failures=2), option(1, failures=1)], 1),
    "availability, by the provider's word": (
        "availability",
        {},
        [option(0, reported_available=False), option(1), option(2, reported_available=True)],
        2,
    ),
    "round-robin": ("round-robin", {}, [option(0, instances=4), option(1, instances=3)], 1),
    "round-robin by weight": (
        "round-robin",
        {"weights": {"aws": 3}},
        [option(0, instances=5), option(1, instances=2, provider="gcp")],
        0,
    ),
    "a plugin": (GREEN, {"grams": {"north": 20.0}}, [option(0), option(1, region="north")], 1),
}


@pytest.mark.parametrize(("strategy", "options", "given", "best"), BEST.values(), ids=BEST)
async def test_the_best_scores_most(
    strategy: str, options: dict[str, Any], given: list[LaunchOption], best: int
) -> None:
    """Each strategy prefers what its name says."""
    scheduler = chosen(strategy, options)
    scores = [await scheduler.score(each) for each in given]
    assert scores.index(max(scores)) == best


@pytest.mark.parametrize("how", ["raise", "hang", "nan"])
async def test_a_defective_scheduler_costs_its_order_and_nothing_else(how: str) -> None:
    """The pool gets its nodes all the same, in its own order."""
    kind = msgspec.structs.replace(SCHEDULER, call_seconds=0.05)
    contract = dataclasses.replace(scheduler_plugins.CONTRACT, kind=kind)
    guard = PluginHost().guard(contract, chosen(BROKEN, {"how": how}), BROKEN)
    assert await scheduler_plugins.score(guard, option(0)) == 0.0


async def test_a_scheduler_that_is_gone_gives_way_to_the_pool_s_order() -> None:
    """A launch that began under an older configuration still ends."""
    gone = Choice(offers=(), strategy="gone")
    scheduler = Schedulers({}, None).of(gone).plugin
    assert await scheduler.score(option(3)) == -3.0


ERRORS = {
    "an unknown strategy": (
        "    strategy: cheapest\n",
        ":7: pools.a.strategy.type: no navarch.schedulers named 'cheapest' (known: availability, ",
    ),
    "an unknown option": (
        "    strategy:\n      type: cost\n      per_gpus: true\n",
        ":9: pools.a.strategy.per_gpus: unknown key; did you mean `per_gpu`?",
    ),
    "a missing option": (
        f"    strategy:\n      type: {GREEN}\n",
        ":7: pools.a.strategy: `grams` is missing; add it",
    ),
}


@pytest.mark.parametrize(("text", "expected"), ERRORS.values(), ids=ERRORS)
def test_what_is_wrong_with_a_strategy_is_said_at_the_start(
    tmp_path: Path, text: str, expected: str
) -> None:
    """A wrong strategy is named with file, line and key, before anything is launched by it."""
    file = tmp_path / "navarch.yaml"
    head = "providers: {aws: {type: aws}}\npools:\n  a:\n    provider: aws\n"
    body = "    instance_type: x\n    max_nodes: 2\n"
    file.write_text(head + body.replace("max", "min_nodes: 1\n    max") + text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as error:
        Schedulers(load_settings(file, {}).pools, file)
    expected = expected.replace(":7:", ":8:").replace(":9:", ":10:")
    assert str(error.value).startswith(f"{file}{expected}")


def test_plugins_are_made_once_for_each_configuration() -> None:
    """A pool's scheduler may keep what it has learnt."""
    strategy = PluginSettings(type=GREEN, options={"grams": {}})
    pool = PoolSpec(provider="aws", instance_type="t", min_nodes=0, max_nodes=1, strategy=strategy)
    made = Schedulers({"a": pool}, None)
    offers = (Offer(provider="aws", instance_type="t"),)
    choice = Choice(offers=offers, strategy=GREEN, strategy_options={"grams": {}})
    assert made.of(choice) is made.of(choice)
