"""The schedule of a stress run: a fleet with the given shares, failures within their bounds."""

from collections import Counter, defaultdict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.duration import Duration
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure, draw
from services.simulator.inputs.stress.stress_fleet import GeneratedFleet, apportion, generate
from services.simulator.inputs.stress.stress_format import (
    CascadingSpec,
    ChaosSpec,
    CorrelationSpec,
    FailureTypeSpec,
    FleetSpec,
    OutageSpec,
    RecoverySpec,
    StartupSpec,
    StressSpec,
    TemplateSpec,
    affected_share,
)
from services.simulator.inputs.stress.stress_validation import problems

FLEET = FleetSpec(
    total_nodes=300,
    templates=(TemplateSpec(name="h100", weight=60), TemplateSpec(name="a100", weight=40)),
    providers={"gcp": 50, "aws": 50},
    regions={"east": 70, "west": 30},
    zones={"east": ("east-a", "east-b", "east-c")},
)
TYPES = tuple(
    FailureTypeSpec(type=each, weight=1)
    for each in ("xid_error", "temperature", "nvml_failure", "network", "boot_failure")
)


def _fatal(type_: str, xid: int) -> bool:
    return type_ == "boot_failure" or xid == 79


def _spec(chaos: ChaosSpec, seconds: float = 1_800, fleet: FleetSpec = FLEET) -> StressSpec:
    spec = StressSpec(duration=Duration(seconds), fleet_gen=fleet, chaos=chaos)
    assert [] == list(problems(spec))
    return spec


def _drawn(spec: StressSpec, seed: str) -> tuple[GeneratedFleet, tuple[ScheduledFailure, ...]]:
    fleet = generate(spec.fleet_gen, seed)
    return fleet, draw(spec, fleet, seed, _fatal)


CHAOS = st.builds(
    ChaosSpec,
    failure_rate=st.floats(0, 200),
    xid_distribution=st.just({"79": 1.0, "13": 2.0, "74": 1.0}),
    failure_types=st.just(TYPES),
    cascading=st.builds(
        CascadingSpec,
        probability=st.floats(0, 1),
        max_depth=st.integers(0, 5),
        scope=st.sampled_from(["rack", "zone", "region", "provider", "random"]),
        max_affected_percent=st.sampled_from([0.0, 0.1, 0.5, 1.0, 5.0]),
    ),
    recovery=st.builds(
        RecoverySpec,
        probability=st.floats(0, 1),
        mean_time=st.just(Duration(60)),
        std_dev=st.just(Duration(100)),
    ),
    scheduled_outages=st.just(
        (
            OutageSpec(
                name="zone",
                start_time=Duration(60),
                duration=Duration(30),
                scope="zone",
                target="east-b",
            ),
        )
    ),
    correlated_failures=st.just(
        (
            CorrelationSpec(name="ping", trigger="temperature", response="network"),
            CorrelationSpec(
                name="pong", trigger="network", response="temperature", scope="same_rack"
            ),
        )
    ),
)


@pytest.mark.parametrize("count", [1, 7, 100, 999])
def test_weights_are_met_to_the_node(count: int) -> None:
    """Shares are whole numbers, within one of their exact part, and sum to the count."""
    weights = {"a": 3.0, "b": 1.0, "c": 0.0, "d": 1.5}
    shares = apportion(weights, count)
    assert count == sum(shares.values())
    for name, weight in weights.items():
        assert abs(shares[name] - count * weight / 5.5) < 1


def test_the_fleet_has_the_given_shares() -> None:
    """Templates, providers and regions have their shares; zones are filled evenly."""
    fleet = generate(FLEET, "1")
    assert {"h100": 180, "a100": 120} == Counter(each.template for each in fleet.slots)
    assert {"gcp": 150, "aws": 150} == Counter(each.provider for each in fleet.slots)
    assert {"east-a": 70, "east-b": 70, "east-c": 70, "west-a": 90} == Counter(
        each.zone for each in fleet.slots
    )
    racks = Counter(each.rack for each in fleet.slots)
    assert FLEET.nodes_per_rack == max(racks.values())
    assert {"a100-aws", "a100-gcp", "h100-aws", "h100-gcp"} == set(fleet.pools)


@pytest.mark.parametrize(
    ("startup", "share_by_half"),
    [
        (StartupSpec(pattern="instant"), 1.0),
        (StartupSpec(pattern="linear", duration=Duration(100)), 0.5),
        (StartupSpec(pattern="exponential", duration=Duration(100)), 0.1),
        (StartupSpec(pattern="wave", duration=Duration(100), batch_size=75), 0.5),
        (
            StartupSpec(pattern="wave", duration=Duration(100), batch_size=30, jitter_percent=20),
            0.5,
        ),
    ],
)
def test_the_fleet_starts_by_its_pattern(startup: StartupSpec, share_by_half: float) -> None:
    """The given share of the fleet is wanted at half of the time, and all of it at the end."""
    fleet = generate(msgspec.structs.replace(FLEET, startup=startup), "1")
    early = sum(1 for each in fleet.slots if each.wanted_at < 50)
    assert share_by_half == pytest.approx(early / len(fleet.slots), abs=0.05)
    sizes = {each.pool: each.nodes for each in fleet.wanted}
    assert {pool: len(fleet.of_pool(pool)) for pool in fleet.pools} == sizes
    assert list(fleet.wanted) == sorted(fleet.wanted, key=lambda each: each.at)


def test_cold_starts_keep_to_their_bounds() -> None:
    """Cold starts are drawn around the mean, and never outside the minimum and maximum."""
    startup = StartupSpec(
        cold_start_min=Duration(30),
        cold_start_max=Duration(60),
        cold_start_mean=Duration(45),
        cold_start_stddev=Duration(20),
    )
    fleet = generate(msgspec.structs.replace(FLEET, startup=startup), "1")
    seconds = [each.cold_start_seconds for each in fleet.slots]
    assert (30.0, 60.0) == (min(seconds), max(seconds))
    assert 45.0 == pytest.approx(sum(seconds) / len(seconds), abs=3)


@settings(max_examples=60, deadline=None)
@given(chaos=CHAOS, seed=st.integers(0, 1_000))
def test_failures_keep_their_bounds(chaos: ChaosSpec, seed: int) -> None:
    """Chains are bounded in depth and nodes, and fatal failures do not pass."""
    spec = _spec(chaos, seconds=600)
    fleet, failures = _drawn(spec, str(seed))
    known = {each.number: each for each in failures}
    assert len(known) == len(failures)
    assert list(failures) == sorted(failures, key=lambda each: (each.at, each.number))
    chains: dict[int, list[ScheduledFailure]] = defaultdict(list)
    for each in failures:
        assert 0 <= each.at < 600
        assert each.fatal == _fatal(each.type, each.xid)
        assert not (each.fatal and each.recovers_after is not None)
        if not each.parent:
            assert each.root == each.number
            continue
        parent = known[each.parent]
        assert (each.depth, each.root) == (parent.depth + 1, parent.root)
        assert each.at >= parent.at
        if each.cause == "cascade":
            assert each.depth <= chaos.cascading.max_depth
            chains[each.root].append(each)
    scope = chaos.cascading.scope
    for number, chain in chains.items():
        name = "" if scope == "random" else getattr(fleet.slots[known[number].slot], scope)
        near = fleet.groups[scope, name]
        assert len(chain) <= len(near) * affected_share(chaos.cascading)
        assert len({each.slot for each in chain}) == len(chain)


def test_failures_come_at_the_given_rate() -> None:
    """Three hours have ten failures per minute and thousand nodes, within ten percent."""
    chaos = ChaosSpec(failure_rate=10, cascading=CascadingSpec(enabled=False))
    _, failures = _drawn(_spec(chaos, seconds=3 * 3_600), "1")
    assert 3 * 60 * 10 * 0.3 == pytest.approx(len(failures), rel=0.1)


def test_types_and_codes_follow_their_weights() -> None:
    """Failure types and XIDs are drawn by weight; the older word means the same."""
    chaos = ChaosSpec(
        failure_rate=500,
        xid_distribution={"13": 3, "79": 1},
        failure_types=(
            FailureTypeSpec(type="xid_error", weight=3),
            FailureTypeSpec(type="nvml_failure", weight=1),
        ),
    )
    _, failures = _drawn(_spec(chaos), "1")
    types = Counter(each.type for each in failures)
    assert {"xid_error", "backend_error"} == set(types)
    assert 0.75 == pytest.approx(types["xid_error"] / len(failures), abs=0.03)
    fatal = sum(1 for each in failures if each.xid == 79)
    assert 0.25 == pytest.approx(fatal / types["xid_error"], abs=0.03)


@pytest.mark.parametrize(
    ("scope", "target", "struck"),
    [
        ("zone", "east-b", 70),
        ("region", "west", 90),
        ("provider", "gcp", 150),
        ("percentage", "10", 30),
    ],
)
def test_an_outage_hits_every_node_of_its_target(scope: str, target: str, struck: int) -> None:
    """An outage hits every node there at its time, and passes after its duration."""
    outage = OutageSpec(
        name="outage",
        start_time=Duration(100),
        duration=Duration(30),
        scope=scope,  # type: ignore[arg-type]
        target=target,
    )
    _, failures = _drawn(_spec(ChaosSpec(scheduled_outages=(outage,))), "1")
    assert struck == len({each.slot for each in failures})
    assert {(100.0, "network", 30.0, "outage")} == {
        (each.at, each.type, each.recovers_after, each.of) for each in failures
    }


def test_the_same_seed_makes_the_same_plan() -> None:
    """Another seed makes another; cascades do not change the independent failures."""
    chaos = ChaosSpec(failure_rate=50, cascading=CascadingSpec(probability=0.5))
    spec = _spec(chaos)
    assert _drawn(spec, "1") == _drawn(spec, "1")
    assert _drawn(spec, "1") != _drawn(spec, "2")
    calm = msgspec.structs.replace(chaos, cascading=CascadingSpec(enabled=False))
    by_chance = [
        [(each.at, each.slot, each.type) for each in failures if each.cause == "chance"]
        for _, failures in (_drawn(spec, "1"), _drawn(_spec(calm), "1"))
    ]
    assert by_chance[0] == by_chance[1]


def test_without_chaos_nothing_fails() -> None:
    """`enabled: false` is enough."""
    _, failures = _drawn(_spec(ChaosSpec(enabled=False, failure_rate=100)), "1")
    assert () == failures
