"""An autoscaler and its pool, in a closed loop, keep bounds and cooldown, and come to rest."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.duration import decode_hook
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from services.pool_manager.autoscaling.autoscaler_plugins import autoscaler_of
from services.pool_manager.autoscaling.autoscalers import PoolMetrics, PoolState
from services.pool_manager.autoscaling.metrics_sources import WaitingJobs
from services.pool_manager.autoscaling.scaling_decision import decide

START = datetime(2030, 1, 7, tzinfo=UTC)
INTERVAL = timedelta(seconds=30)
HISTORY = 60


@dataclass(frozen=True)
class Size:
    """Records what the loop saw at one moment."""

    at: datetime
    wanted: int


def run_loop(
    raw: dict[str, Any],
    demand: Callable[[int], float],
    *,
    rounds: int,
    bounds: tuple[int, int],
    boot_rounds: int,
    cooldown_seconds: int,
    gang: int = 1,
) -> list[Size]:
    """Ask the autoscaler every 30 s while jobs want `demand` nodes; new nodes boot for a while."""
    autoscaler = autoscaler_of(raw, "pools.a.autoscaling", None)
    low, high = bounds
    spec = msgspec.convert(
        {"provider": "p", "min_nodes": low, "max_nodes": high, "cooldown": f"{cooldown_seconds}s"},
        PoolSpec,
        dec_hook=decode_hook,
    )
    record = PoolRecord(name="a", spec=spec, desired=low)
    booting: list[int] = []
    """The rounds in which nodes that boot will be ready."""
    ready, found = low, [Size(START, low)]
    history: list[tuple[float, int]] = []
    for count in range(rounds):
        now = START + count * INTERVAL
        ready += sum(each <= count for each in booting)
        booting = [each for each in booting if each > count]
        wanted = demand(count)
        busy = min(wanted, ready) // gang * gang if gang > 1 else min(wanted, ready)
        if ready:
            history = [*history, (100 * busy / ready, ready)][-HISTORY:]
        waiting = max(int((wanted - busy) // gang), 0)
        metrics = PoolMetrics(
            utilization=100 * busy / ready if ready else None,
            utilization_history=tuple(each for each, _ in history),
            ready_nodes_history=tuple(each for _, each in history),
            waiting=(WaitingJobs(nodes=gang, count=waiting),),
            busy_nodes=int(-(-busy // 1)),
        )
        state = PoolState(
            pool="a",
            current_nodes=record.desired,
            ready_nodes=ready,
            min_nodes=low,
            max_nodes=high,
            metrics=metrics,
            now=now,
        )
        change = decide(record, count, autoscaler.recommend(state), "it", now)
        if change is None:
            continue
        more = change.record.desired - record.desired
        if more > 0:
            booting += [count + boot_rounds] * more
        else:
            cancelled = min(len(booting), -more)
            booting = booting[: len(booting) - cancelled]
            ready += more + cancelled
        record = change.record
        found.append(Size(now, record.desired))
    return found


def reversals(sizes: list[Size]) -> int:
    """Return how often the size went up and then down, or down and then up."""
    steps = [after.wanted - before.wanted for before, after in pairwise(sizes)]
    return sum(before * after < 0 for before, after in pairwise(steps))


STRATEGIES: dict[str, dict[str, Any]] = {
    "reactive": {"type": "reactive"},
    "narrow reactive": {"type": "reactive", "scale_up_at": 60, "scale_down_at": 55, "step": 3},
    "queue": {"type": "queue"},
    "predictive": {"type": "predictive"},
    "largest": {
        "type": "composite",
        "autoscalers": [{"type": "queue"}, {"type": "reactive"}, {"type": "predictive"}],
    },
    "average": {
        "type": "composite",
        "mode": "avg",
        "autoscalers": [{"type": "queue"}, {"type": "reactive"}],
    },
}


@pytest.mark.parametrize("name", STRATEGIES)
@given(
    demand=st.floats(0, 60, allow_nan=False),
    low=st.integers(0, 4),
    boot=st.integers(1, 20),
    cooldown=st.sampled_from([0, 60, 300]),
)
def test_constant_load_leads_to_rest(
    name: str, demand: float, low: int, boot: int, cooldown: int
) -> None:
    """The size no longer changes after four hours of the same load, however long nodes boot."""
    sizes = run_loop(
        STRATEGIES[name],
        lambda _: demand,
        rounds=600,
        bounds=(low, 40),
        boot_rounds=boot,
        cooldown_seconds=cooldown,
    )
    settled = [each for each in sizes if each.at >= START + 500 * INTERVAL]
    assert not settled, f"{len(settled)} changes after four hours: {sizes[-6:]}"
    if name in ("queue", "reactive", "narrow reactive"):
        assert reversals(sizes) <= 1


@pytest.mark.parametrize("name", STRATEGIES)
@given(
    loads=st.lists(st.floats(0, 80, allow_nan=False), min_size=1, max_size=20),
    cooldown=st.sampled_from([0, 45, 300]),
    gang=st.sampled_from([1, 4]),
)
def test_bounds_and_cooldown_hold_under_any_load(
    name: str, loads: list[float], cooldown: int, gang: int
) -> None:
    """Never outside the limits, never two changes within a cooldown."""
    sizes = run_loop(
        STRATEGIES[name],
        lambda count: loads[count // 10 % len(loads)],
        rounds=200,
        bounds=(2, 30),
        boot_rounds=4,
        cooldown_seconds=cooldown,
        gang=gang,
    )
    assert all(2 <= each.wanted <= 30 for each in sizes)
    for before, after in pairwise(sizes[1:]):
        assert after.at - before.at >= timedelta(seconds=cooldown)


@given(waiting=st.integers(0, 12), boot=st.integers(1, 10))
def test_gangs_have_all_of_their_nodes_or_none(waiting: int, boot: int) -> None:
    """Jobs of four nodes in a pool of up to 18: sizes are multiples of four."""
    sizes = run_loop(
        {"type": "queue"},
        lambda _: 4.0 * waiting,
        rounds=100,
        bounds=(0, 18),
        boot_rounds=boot,
        cooldown_seconds=0,
        gang=4,
    )
    assert all(each.wanted % 4 == 0 for each in sizes)
    assert sizes[-1].wanted == min(4 * waiting, 16)
