"""A machine that sends heartbeats after its node is gone is reported until it ends."""

from services.health_monitor.rules.expired_heartbeats import (
    ENDED_MAX,
    NAMED_MAX,
    OUTLIVED_SECONDS,
    OutlivedNodes,
)

LATE = OUTLIVED_SECONDS + 1


def test_agents_of_nodes_that_are_gone_are_named_until_they_are_silent() -> None:
    """A machine takes minutes to shut down; a list that hides it shows nothing of it."""
    known = OutlivedNodes()
    known.ended("training.n1", 0.0)
    assert known.warnings(["training.n1"], OUTLIVED_SECONDS - 1) == []
    (found,) = known.warnings(["training.n0", "training.n1"], LATE)
    assert (found.failure, found.reason.rpartition(": ")[2]) == ("node-outlived", "training/n1")
    assert known.warnings(["training.n0"], LATE) == []


def test_a_node_of_the_same_name_is_in_its_own_right() -> None:
    """A host that is given back and joins again registers."""
    known = OutlivedNodes()
    known.ended("training.n1", 0.0)
    known.began("training.n1")
    assert known.warnings(["training.n1"], LATE) == []


def test_of_many_the_first_are_named_and_the_last_remembered() -> None:
    """Neither the warning nor the memory of a fleet that has lived long grows without end."""
    known = OutlivedNodes()
    nodes = [f"training.n{number:05d}" for number in range(ENDED_MAX + 1)]
    for each in nodes:
        known.ended(each, 0.0)
    (found,) = known.warnings(nodes, LATE)
    assert found.reason.endswith("training/n00005 and others")
    assert found.reason.count("training/") == NAMED_MAX
    assert known.warnings(nodes[:1], LATE) == []
