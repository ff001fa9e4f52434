"""The pool-manager's answer names holds, observe mode, windows and spares."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from schemas.breaker_state import ObservedAction
from schemas.duration import Duration
from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import PoolRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import PoolSpec, WindowSpec
from services.pool_manager.planner.explanation.node_explanation import possible_actions
from services.pool_manager.planner.explanation.pool_explanation import present_answer
from services.pool_manager.planner.node_counts import Nodes
from tests.support.explained import node_blocks

NOW = datetime(2026, 5, 5, 12, tzinfo=UTC)
SPEC = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=9, spares=2)
POOL = PoolRecord(name="training", spec=SPEC, desired=2)
FREEZE = WindowSpec(name="launch", kind="freeze", start="0 9 * * *", duration=Duration(36_000))
SERVICE = WindowSpec(name="night", kind="service", start="0 2 * * *", duration=Duration(7200))
UNHEALTHY = NodeRecord(pool="training", node="n1", state="active", health="unhealthy")


@pytest.mark.parametrize(
    ("nodes", "state", "said"),
    [
        ("launched", "active", False),
        ("adopted", "active", False),
        ("enrolled", "active", True),
        ("enrolled", "terminated", False),
    ],
)
def test_what_can_be_done_to_a_machine_that_joined(nodes: str, state: str, said: bool) -> None:
    """The owner of a machine reads that nothing replaces or ends it."""
    node = msgspec.structs.replace(UNHEALTHY, state=state)

    assert said == bool(possible_actions(node, pool(nodes=nodes)))
    assert possible_actions(node, None) == ""


def test_what_can_be_done_to_a_machine_that_slurm_has() -> None:
    """Navarch sees no faults of one without an agent, and resets and reboots nothing."""
    launch = LaunchSpec(fleet="", provider="p", instance_type="", lasting=True)
    node = msgspec.structs.replace(UNHEALTHY, launch=launch)
    adopted = pool(nodes="adopted")

    assert "can neither reset its GPUs nor reboot it; nothing replaces" in (
        possible_actions(node, adopted)
    )
    node = msgspec.structs.replace(node, registered_at=NOW)
    assert "and have its agent reset its GPUs and reboot it; nothing replaces" in (
        possible_actions(node, adopted)
    )


def pool(**changes: object) -> PoolRecord:
    """Return the pool with another spec."""
    return msgspec.structs.replace(POOL, spec=msgspec.structs.replace(SPEC, **changes))


NOTICE = CloudNotice(
    kind="maintenance", effect="retire", deadline=NOW + timedelta(days=3), at=NOW, reason="old"
)
HELD = msgspec.structs.replace(
    UNHEALTHY, held_until=NOW + timedelta(hours=1), held_by="ada", held_reason="bisecting"
)
RETIRES = msgspec.structs.replace(
    UNHEALTHY, health="degraded", health_kind="maintenance", cordoned=True, notices={"n": NOTICE}
)
OBSERVING = msgspec.structs.replace(
    pool(mode="observe"),
    observed_actions={
        "replace n1": ObservedAction(kind="replace", node="n1", reason="XID 79", since=NOW)
    },
)


@pytest.mark.parametrize(
    ("node", "record", "words"),
    [
        (UNHEALTHY, POOL, []),
        (HELD, POOL, ["held until", "by ada: bisecting", "navarch release n1"]),
        (UNHEALTHY, OBSERVING, ["in observe mode", "would begin replace"]),
        (UNHEALTHY, pool(mode="observe"), ["in observe mode, so nothing is performed"]),
        (UNHEALTHY, pool(windows=(FREEZE,)), ["window launch freezes the pool until"]),
        (RETIRES, pool(windows=(FREEZE,)), ["window launch freezes the pool until"]),
        (msgspec.structs.replace(UNHEALTHY, lost=True), pool(windows=(FREEZE,)), []),
        (msgspec.structs.replace(UNHEALTHY, health="healthy"), pool(windows=(FREEZE,)), []),
    ],
)
def test_what_blocks_a_node_is_named(
    node: NodeRecord, record: PoolRecord, words: list[str]
) -> None:
    """Each block has one sentence; without a block there is none."""
    text = " ".join(node_blocks(node, record, NOW))

    assert bool(words) == bool(text)
    assert [each for each in words if each not in text] == []


def held(record: PoolRecord, *nodes: NodeRecord, now: datetime = NOW) -> dict[str, list[str]]:
    """Return the sentences about a pool by gate."""
    found: dict[str, list[str]] = {}
    for each in present_answer(record, Nodes(nodes), now).blocked:
        found.setdefault(each.gate, []).append(each.text)
    return found


def test_observed_actions_windows_and_spares_of_a_pool_are_named() -> None:
    """The answer has the decisions, the freeze, the next service window, and the ready spares."""
    spare = msgspec.structs.replace(UNHEALTHY, node="s1", spare=True, health="healthy")
    windows = held(pool(windows=(FREEZE, SERVICE)))
    [at_night] = held(pool(windows=(SERVICE,)), now=NOW.replace(hour=3))["service-window"]

    assert held(OBSERVING)["observe"][1] == "It would begin replace of n1: XID 79."
    assert "The window launch freezes the pool until" in windows["freeze-window"][0]
    assert "Remediation that can wait is done in the window night" in windows["service-window"][0]
    assert at_night.startswith("The window night is open for service until")
    assert held(POOL, spare, UNHEALTHY)["spare"] == ["Spares ready: 1 of 2: s1."]
