"""The engine of conditions: what holds is what is seen, over noise, losses and restarts."""

import dataclasses
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.conditions.declared import BY_NAME, CONDITIONS
from agent.conditions.engine import Conditions, Observed, Seen, held, started, step
from agent.conditions.gpu_reader import NvmlOutage, NvmlView, read_gpus
from agent.observations import Best, GpuInventory, GpuNeeds, NodeSample, NvmlFailure
from schemas.gpu_samples import GpuSample
from schemas.held_conditions import HELD_MAX, LIST_BYTES_MAX, HeldCondition, bounded
from schemas.node_events import GpuIdentity
from services.health_monitor.rules.policy_file import load_policy
from services.settings.packaged_files import resource
from tests.health_monitor.test_default_policy import judge

NAMES: Final = tuple(each.name for each in CONDITIONS if each.reader == "nvml")
GPUS = tuple(GpuIdentity(index=i, uuid=f"GPU-{i}", name="NVIDIA H100 80GB HBM3") for i in range(8))
HEALTHY: Final = {"nvlinks_up": 18, "fabric_state": 3, "pcie_width": 16, "throttle_reasons": 1}
BEST = {gpu.uuid: Best(pcie_width=16, nvlinks=18) for gpu in GPUS}


def seen_of(keys: list[tuple[str, int]]) -> dict[tuple[str, int], Seen]:
    """Conditions as a reader sees them."""
    return {key: Seen("seen") for key in keys}


STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-1, 3)), max_size=6, unique=True),
        st.dictionaries(st.integers(-1, 3), st.just("hangs"), max_size=2),
        st.sampled_from([0.0, 1.0, 15.0, 500.0]),
        st.sampled_from(["run", "run", "run", "restart", "boot", "clock back"]),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_begins_and_ends_alternate_and_what_holds_is_what_was_seen_last(steps: list[Any]):
    """Counters grow over losses and restarts, and a long readable look decides."""
    state, now = Conditions(), 1_000_000.0
    holds: dict[tuple[str, int], bool] = {}
    counter = 0
    for keys, unread, elapsed, event in steps:
        now += elapsed if event != "clock back" else -100_000.0
        if event in ("restart", "boot"):
            state = started(state, now, same_boot=event == "restart")
            state = msgspec.json.decode(msgspec.json.encode(state), type=Conditions)
            if event == "boot":
                holds.clear()
        state, changes = step(state, Observed("nvml", seen_of(keys), unread), now, elapsed)
        for change in changes:
            key = (change.track.name, change.track.gpu)
            assert holds.get(key, False) == change.over
            assert change.counter > counter
            counter = change.counter
            holds[key] = not change.over
        shown = {(each.name, each.gpu) for each in held(state) if not each.unknown}
        assert shown == {key for key, on in holds.items() if on}
    last = list(steps[-1][0]) if steps else []
    for _ in range(60):
        now += 15.0
        state, _ = step(state, Observed("nvml", seen_of(last)), now, 15.0)
    assert {(each.name, each.gpu) for each in held(state)} == set(last)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=600))
@settings(deadline=None)
def test_noise_begins_nothing_and_an_unreadable_minute_ends_nothing(looks: list[Any]):
    """A value that jitters about a bound begins seldom; what is not read does not end."""
    state, events = Conditions(), 0
    for number, (beyond, readable) in enumerate(looks):
        seen = seen_of([("slowed-power", 1)] if beyond and readable else [])
        observed = Observed("nvml", seen, {} if readable else {1: "hangs"})
        before = {each.name for each in held(state)}
        state, changes = step(state, observed, 1e6 + number, 1.0)
        events += len(changes)
        if not readable:
            assert before - {"nvml"} <= {each.name for each in held(state)}
    assert events <= 2 * (len(looks) // int(BY_NAME["slowed-power"].ends_seconds) + 1)


@given(st.integers(0, 400), st.integers(0, 300))
def test_a_list_has_bounds_and_counts_what_it_leaves_out(count: int, text: int):
    """The list holds the severe ones of many conditions, within entries and bytes."""
    many = tuple(
        HeldCondition(name="gpu-lost", gpu=i, since=1.0, severe=i % 2 == 0, message="x" * text)
        for i in range(count)
    )
    found = bounded("boot", 1, many)
    assert len(found.held) + found.left_out == count
    assert len(found.held) <= HELD_MAX
    assert sum(len(msgspec.json.encode(each)) for each in found.held) <= LIST_BYTES_MAX
    kept = sum(each.severe for each in found.held)
    assert kept == len(found.held) or kept == (count + 1) // 2


def view(*, failures: tuple[NvmlFailure, ...] = (), **changes: Any) -> NvmlView:
    """Return eight GPUs in order; `changes`: of the sample of GPU 5."""
    gpus = tuple(
        GpuSample(index=gpu.index, uuid=gpu.uuid, **(HEALTHY | (changes if gpu.index == 5 else {})))
        for gpu in GPUS
        if gpu.index not in {each.index for each in failures}
    )
    return NvmlView(
        inventory=GpuInventory(GPUS),
        sample=NodeSample(gpus, failures),
        needs=GpuNeeds(gpus=8),
        best=BEST,
    )


def held_after(observed: Observed, seconds: float) -> list[HeldCondition]:
    """Return what holds once this was seen for so long."""
    state = Conditions()
    for number in range(int(seconds) + 1):
        state, _ = step(state, observed, 1e6 + number, 1.0)
    return [each for each in held(state) if not each.unknown]


def outage(text: str, **fields: Any) -> NvmlView:
    """NVML does not answer."""
    return NvmlView(outage=NvmlOutage(text, **fields), best={})


CASES = [
    ("in order", view(), 3600, []),
    ("all links down", view(nvlinks_up=0), 10, ["nvlinks-all-down"]),
    ("one link down", view(nvlinks_up=17), 10, ["nvlinks-down"]),
    ("half the lanes", view(pcie_width=8), 10, ["pcie-width"]),
    ("not in the fabric", view(fabric_state=2), 10, ["fabric-left"]),
    ("the fabric refused it", view(fabric_status=58), 10, ["fabric-failed"]),
    ("fabric bandwidth", view(fabric_health_mask=0x1A9), 10, ["fabric-unhealthy"]),
    ("power brake", view(throttle_reasons=0x88), 10, ["slowed-power"]),
    ("a moment of power brake", view(throttle_reasons=0x88), 2, []),
    ("idle", view(throttle_reasons=0x4), 3600, []),
    ("asks for a reboot", view(recovery_action=2), 0, ["gpu-recovery"]),
    (
        "needs a reset",
        view(failures=(NvmlFailure(3, "probe_failed", "r", 16),)),
        0,
        ["gpu-recovery"],
    ),
    ("is lost", view(failures=(NvmlFailure(3, "gpu_lost", "l", 15),)), 0, ["gpu-lost"]),
    (
        "one does not answer",
        view(failures=(NvmlFailure(3, "probe_failed", "x", 999),)),
        150,
        ["gpu-failing", "gpu-silent"],
    ),
    (
        "none answers",
        view(failures=tuple(NvmlFailure(i, "probe_failed", "x", 999) for i in range(8))),
        150,
        ["driver-failing", *["gpu-failing"] * 8, *["gpu-silent"] * 8],
    ),
    ("hangs", outage("hangs", hangs=True, reading="power"), 20, ["driver-hangs"]),
    ("hangs for good", outage("hangs", hangs=True), 150, ["driver-hangs", "driver-hung"]),
    ("hangs for a minute", outage("hangs", hangs=True), 60, ["driver-hangs"]),
    ("fails for a minute", outage("unknown", code=999), 60, []),
    ("not loaded yet", outage("no driver", code=9), 500, []),
    ("never loaded", outage("no driver", code=9), 700, ["driver-not-loaded"]),
    ("another version", outage("mismatch", code=18), 20, ["driver-mismatch"]),
    ("fails as a whole", outage("unknown", code=999), 150, ["driver-failing"]),
]


@pytest.mark.parametrize(
    ("looked", "seconds", "names"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_is_seen_holds(looked: NvmlView, seconds: float, names: list[str]):
    """Each state of the driver, a GPU or a link is its condition, once it has lasted."""
    assert sorted(each.name for each in held_after(read_gpus(looked), seconds)) == names


def test_the_default_policy_rates_a_condition_as_the_agent_does():
    """`severe` and `remedy` of the table are what the policy makes of the condition."""
    load_policy(resource("health-policy.yaml"))
    for each in CONDITIONS:
        judged = judge(
            each.kind,
            each.code,
            subcode=each.subcode or each.example_word,
            metrics=each.example_metrics,
            condition=each.name,
        )
        assert judged.result == ("unhealthy" if each.severe else "degraded"), each.name
        assert judged.action == each.remedy, each.name


@pytest.mark.parametrize(
    ("outage_of", "awaited", "why"),
    [
        ({"code": 9}, True, "waiting for the driver: x"),
        ({"code": 9}, False, "x"),
        ({"code": 18}, True, "waiting for the driver: x"),
        ({"hangs": True}, True, "waiting for the driver: x"),
        ({"hangs": True}, False, "x"),
    ],
)
def test_a_driver_is_waited_for_only_while_it_has_its_time(outage_of, awaited: bool, why: str):
    """The text of the unknown says so while the boot checks wait, and only then."""
    looked = dataclasses.replace(outage("x", **outage_of), driver_awaited=awaited)
    assert read_gpus(looked).unread == {-1: why}


def test_what_cannot_be_read_is_unknown_since_and_why():
    """An unreadable GPU is listed as unknown, and what held there holds on."""
    state, _ = step(Conditions(), Observed("nvml", seen_of([("gpu-lost", 2)])), 10.0, 1.0)
    state, changes = step(state, Observed("nvml", {}, {-1: "NVML hangs"}), 20.0, 10.0)
    state, _ = step(state, Observed("nvml", {}, {-1: "NVML hangs"}), 80.0, 30.0)
    assert changes == ()
    found = {each.name: each for each in held(state)}
    assert found["gpu-lost"].since == timedelta(seconds=10).total_seconds()
    assert (found["nvml"].unknown, found["nvml"].since) == (True, 20.0)
    assert found["nvml"].message == "NVML hangs"
