"""A figure is compared with its floor; a quarter above the worst committed round is reported."""

import ast
import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.comparison import (
    QUICK,
    beside_floor,
    confirmed,
    floor_defects,
    history_line,
    is_rate,
    loop_ms,
    medians,
    verdicts,
    worse,
)

FOLDER: Final = Path(__file__).resolve().parents[2] / "benchmarks"
COMMITTED: Final[dict[str, Any]] = json.loads((FOLDER / "latest.json").read_bytes())
POSITIVE: Final = st.floats(min_value=1e-3, max_value=1e6)


def figures(name: str, floor: float, *, ratio: float) -> dict[str, float]:
    """A figure that costs so many times its floor."""
    return beside_floor(name, floor / ratio if is_rate(name) else floor * ratio, floor)


def slowed(name: str, factor: float) -> dict[str, float]:
    """The figure of the worst committed round, whose work takes `factor` times as long."""
    ratio = max(COMMITTED[f"{name}_ratio"], COMMITTED.get(f"{name}_ratio_worst", 0.0))
    return figures(name, COMMITTED[f"{name}_floor"], ratio=ratio * factor)


@pytest.mark.parametrize("name", QUICK)
def test_a_slowdown_of_a_hot_path_by_30_percent_is_caught(name: str) -> None:
    """Each figure of the quick set, 30 % above its worst round in both measurements, fails."""
    slow = slowed(name, 1.3)
    assert worse(slow, COMMITTED) == [name]
    assert confirmed([name], slow, COMMITTED) == [name]


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.2])
def test_less_than_a_quarter_is_no_failure(name: str, factor: float) -> None:
    """A figure that is faster, equal or a fifth slower does not fail."""
    assert worse(slowed(name, factor), COMMITTED) == []


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("machine", [0.4, 3.0])
def test_a_machine_of_another_speed_changes_no_verdict(name: str, machine: float) -> None:
    """A machine that does the figure's and the floor's work at another speed is no slowdown."""
    factor = 1 / machine if is_rate(name) else machine
    taken = beside_floor(name, COMMITTED[name] * factor, COMMITTED[f"{name}_floor"] * factor)
    assert worse(taken, COMMITTED) == []


def test_what_is_worse_once_does_not_fail() -> None:
    """A figure fails only if it is worse again when its part is measured alone."""
    first, second = QUICK[:2]
    committed = figures(first, 1.0, ratio=2.0) | figures(second, 1.0, ratio=2.0)
    noisy = figures(first, 1.0, ratio=4.0) | figures(second, 1.0, ratio=2.0)
    again = figures(first, 1.0, ratio=2.1) | figures(second, 1.0, ratio=4.0)
    suspects = worse(noisy, committed)
    assert suspects == [first]
    assert confirmed(suspects, again, committed) == []


def test_a_figure_outside_the_quick_set_or_without_a_committed_ratio_does_not_fail() -> None:
    """The quick set alone fails, and a new figure has nothing to be compared with."""
    assert (
        worse(figures("other_seconds", 1.0, ratio=9.0), figures("other_seconds", 1.0, ratio=1.0))
        == []
    )
    new = figures(QUICK[0], 1.0, ratio=9.0)
    assert worse(new, {}) == []
    assert [each.text for each in verdicts(new, {})] == ["new"]


@given(
    st.sampled_from(["x_seconds", "seconds", "x_per_second", "per_second"]),
    POSITIVE,
    st.floats(1.1, 50),
    st.floats(1.1, 9),
)
def test_a_ratio_grows_with_the_cost(name: str, floor: float, ratio: float, factor: float) -> None:
    """A ratio is how many times the floor's cost is paid, for times and rates alike."""
    cheap, dear = (figures(name, floor, ratio=each) for each in (ratio, ratio * factor))
    assert cheap[f"{name}_ratio"] == pytest.approx(ratio, rel=1e-3)
    assert dear[f"{name}_ratio"] > cheap[f"{name}_ratio"]


def test_medians_are_of_the_rounds_and_an_outlier_moves_nothing() -> None:
    """One disturbed round of three changes neither the figure, the floor nor the ratio."""
    rounds = [({"x": 4.0, "y": 1.0}, {"x": 2.0})] * 2 + [({"x": 99.0, "y": 7.0}, {"x": 33.0})]
    expected = {"x": 4.0, "x_floor": 2.0, "x_ratio": 2.0, "x_ratio_worst": 3.0, "y": 1.0}
    assert medians(rounds) == expected


@pytest.mark.parametrize(
    ("floor", "loop", "found"),
    [
        (1.0, 2.0, []),
        (1.1, 2.0, []),
        (1.2, 2.0, ["x_seconds_floor: +20%"]),
        # The machine is half as fast: a floor of twice the time is the same.
        (2.0, 4.0, []),
        (1.0, 1.0, ["x_seconds_floor: +100%"]),
    ],
)
def test_a_floor_that_has_grown_on_an_equal_machine_is_a_defect(
    floor: float, loop: float, found: list[str]
) -> None:
    """A floor 15 % worse than the committed one, normed by the machine's speed, is named."""
    now, before = figures("x_seconds", floor, ratio=2.0), figures("x_seconds", 1.0, ratio=2.0)
    assert floor_defects(now, loop, before, 2.0) == found


def test_a_floor_of_a_rate_is_worse_when_it_is_lower() -> None:
    """A relay that passes on fewer messages a second is the defect, one that passes more is not."""
    before = figures("x_per_second", 1000.0, ratio=2.0)
    assert floor_defects(figures("x_per_second", 800.0, ratio=2.0), 2.0, before, 2.0)
    assert not floor_defects(figures("x_per_second", 1200.0, ratio=2.0), 2.0, before, 2.0)


def test_the_machines_speed_is_the_better_of_before_and_after() -> None:
    """Another program that began meanwhile does not make the machine slow."""
    floors = {"before": {"loop_ms_min": 2.0}, "after": {"loop_ms_min": 3.0}}
    assert loop_ms({"machine_floor": floors}) == 2.0


def test_history_has_a_line_where_a_ratio_has_changed() -> None:
    """A line says which ratios a commit has changed; equal ratios add none."""
    before, now = figures("x", 1.0, ratio=2.0), figures("x", 1.0, ratio=1.5)
    assert history_line("part", before, before, "abc", "today") is None
    assert history_line("part", now, before, "abc", "today") == {
        "commit": "abc",
        "date": "today",
        "part": "part",
        "ratios": {"x_ratio": 1.5},
    }


def test_every_committed_ratio_is_of_the_committed_figure_and_floor() -> None:
    """No ratio in latest.json was written by hand, and all of the quick set are there."""
    names = [each.name for each in verdicts(COMMITTED, COMMITTED)]
    for name in names:
        again = beside_floor(name, COMMITTED[name], COMMITTED[f"{name}_floor"])
        assert again[f"{name}_ratio"] == COMMITTED[f"{name}_ratio"], name
    assert set(QUICK) <= set(names)


def test_no_benchmark_writes_the_name_of_a_ratio_itself() -> None:
    """Figures get their floors and ratios in one place."""
    written = [
        f"{path.name}:{node.lineno}"
        for path in FOLDER.glob("*.py")
        if path.name != "comparison.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.endswith(("_ratio", "_floor"))
        and node.value != "machine_floor"
    ]
    assert written == []
