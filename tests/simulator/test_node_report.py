"""A stress run records a bounded number of things about each node, and counts them by place."""

from services.simulator.inputs.stress import node_report
from services.simulator.inputs.stress.node_report import (
    CHANGES_MAX,
    MOMENTS_MAX,
    NodeLife,
    NodeLives,
)


def test_nodes_are_counted_by_state_at_each_moment() -> None:
    """A change counts from the first moment that is not before it; a gone node counts nowhere."""
    lived = [
        NodeLife("a", states=[(1.0, "starting"), (10.0, "healthy"), (25.0, "gone")]),
        NodeLife("b", states=[(11.0, "starting"), (20.0, "degraded"), (21.0, "out")]),
        NodeLife("c", states=[(99.0, "starting")]),
    ]
    assert node_report.timeline(lived, [10.0, 20.0, 30.0]) == {
        "healthy": [1, 1, 0],
        "degraded": [0, 1, 0],
        "starting": [0, 0, 0],
        "out": [0, 0, 1],
    }
    assert {0} == {sum(each) for each in node_report.timeline([], [1.0, 2.0]).values()}


def test_a_flapping_node_keeps_its_first_and_last_states() -> None:
    """Further moments are counted, and long texts are cut."""
    lives = NodeLives()
    for number in range(CHANGES_MAX * 3):
        lives.change(float(number), "a", "p", "out" if number % 2 else "healthy")
        lives.add(float(number), "a", "x" * 1_000)
    (life,) = lives.all.values()
    assert (CHANGES_MAX, 0.0) == (len(life.states), life.states[0][0])
    assert (CHANGES_MAX * 3 - 1.0, "out") == life.states[-1]
    assert (MOMENTS_MAX, CHANGES_MAX * 3 - MOMENTS_MAX) == (len(life.moments), life.left_out)
    assert {node_report.TEXT_CHARS_MAX} == {len(text) for _, text in life.moments}


def test_the_nodes_to_which_most_happened_are_listed() -> None:
    """A long list ends; a node without a machine has no place."""
    lives = NodeLives()
    for number in range(node_report.NODES_LISTED_MAX + 5):
        lives.change(1.0, f"n{number:05}", "p", "starting")
    lives.all["n02004"].failures = 2
    lives.repair(2.0, "n02003", "replace", "done")
    listed = node_report.nodes(lives, {})
    assert node_report.NODES_LISTED_MAX == len(listed)
    assert ["n02004", "n02003", "n00000"] == [each.node for each in listed[:3]]
    assert ("", "starting") == (listed[0].zone, listed[0].state)
