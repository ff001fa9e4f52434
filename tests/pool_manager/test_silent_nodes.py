"""Silent nodes whose instances run are repaired one for each hold."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from schemas.duration import Duration
from schemas.pool_records import OpenSaga
from services.pool_manager.planner.pool_snapshot import PoolPlan
from tests.pool_manager.test_incidents import NOW, decide, node, pool, silent


@pytest.mark.parametrize(
    ("after", "begun"),
    [(899, []), (900, ["n000"]), (1799, []), (1800, ["n001"]), (2699, []), (2700, ["n002"])],
)
def test_silent_nodes_are_probed_one_for_each_hold(after: float, begun: list[str]) -> None:
    """Ten of twenty whose instances run stayed out until a person acted."""
    nodes = [silent(i, after=i / 10) if i < 12 else node(i) for i in range(20)]
    record, found = decide(pool(20), nodes, after=5).record, None
    for moment in (*range(900, int(after), 900), after):
        left = [each for each in nodes if not found or each.node not in begun_by(found)]
        found = decide(msgspec.structs.replace(record, open={}), left, after=moment)
        nodes, record = left, found.record
    assert found is not None
    assert begun_by(found) == begun


def begun_by(found: PoolPlan) -> list[str]:
    """Return the nodes whose repair a decision begins."""
    return [each.node for each in found.start.values() if each.kind == "replace"]


def test_a_silence_of_a_whole_pool_is_not_probed() -> None:
    """A release of the agent, or a link: no repair of a node would help."""
    nodes = [silent(i) for i in range(20)]
    first = decide(pool(20), nodes, after=5)
    assert {} == decide(first.record, nodes, after=9000).start


@pytest.mark.parametrize(
    ("changes", "minutes", "begun"),
    [
        ({"drain": "wait"}, 60, ["n000"]),
        ({"drain": "wait"}, 59, []),
        ({"drain": "deadline"}, 60, []),
        ({"fault_signature": "expired"}, 1, ["n000"]),
        ({"cause": "an operator"}, 1, ["n000"]),
    ],
    ids=["it does not end", "it has its time", "it ends", "no fault", "an operator's"],
)
def test_a_probe_waits_for_no_drain_that_does_not_end(
    changes: dict[str, Any], minutes: float, begun: list[str]
) -> None:
    """One job that never left kept seven of fourteen nodes out for ever."""
    nodes = [silent(i) if i < 6 else node(i) for i in range(14)]
    record = pool(14)
    spec = msgspec.structs.replace(record.spec, drain_timeout=Duration(3600))
    record = decide(msgspec.structs.replace(record, spec=spec), nodes, after=5).record
    since = NOW + timedelta(seconds=5000) - timedelta(minutes=minutes)
    opened = OpenSaga(kind="replace", node="n013", new_node="x", since=since, **changes)
    record = msgspec.structs.replace(record, open={"replace-n013-1": opened})
    assert begun_by(decide(record, nodes, after=5000)) == begun


@pytest.mark.parametrize(
    ("after", "begun"), [(3600.0, []), (4499.0, []), (4500.0, ["n002"])], ids=str
)
def test_after_a_cut_the_last_have_a_hold_to_connect_again(after: float, begun: list[str]) -> None:
    """Agents come back within seconds of each other; the hold was over long before."""
    away = [silent(i) for i in range(20)]
    record = decide(pool(20), away, after=5).record
    back = [node(i) if i < 2 else silent(i) for i in range(20)]
    record = decide(record, back, after=3600).record
    assert begun_by(decide(record, back, after=after)) == begun
