"""Where a faulty GPU alone is taken out of use, and where its node is: decisions of the monitor."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.health_records import HealthRecord
from schemas.node_events import Fault, Registered, Uncordoned
from schemas.node_records import NodeRecord
from services.health_monitor.rules import node_health
from services.health_monitor.rules.health_policy import Judgement
from services.health_monitor.rules.lost_health import missing_verdict
from services.health_monitor.rules.node_health import PublishVerdict, Trigger
from services.health_monitor.rules.policy_file import load_policy, parse_policy
from services.primitives.errors import ConfigurationError
from services.settings.packaged_files import resource

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)


def fault(number: int, gpu: int = 3, code: int = 48) -> Fault:
    return Fault(
        id=f"f{number}", time=NOW, pool="p", node="n", kind="xid", code=code, gpu_index=gpu
    )


def judged(result: str = "unhealthy", **fields: Any) -> Judgement:
    usual = {"action": "reset_gpu", "rule": "r", "policy": "abc", "cordon": "gpu", "fatal": True}
    return Judgement(result=result, **(usual | fields))


def seen(number: int, seconds: float = 0.0) -> Trigger:
    return Trigger(f"f{number}", number, NOW + timedelta(seconds=seconds))


def after(
    *faults: tuple[Fault, Judgement], asked: bool = True, needed: int = 1
) -> tuple[HealthRecord, list[tuple[str, str, tuple[int, ...]]]]:
    """Return the record, and status, action and GPUs of each verdict."""
    record = HealthRecord(pool="p", node="n", status="healthy")
    found = []
    for number, (each, judgement) in enumerate(faults, 1):
        record, effects = node_health.decide_fault(
            *(record, each, judgement, seen(number)), unhealthy_after=needed, cordons_gpus=asked
        )
        found += [e.verdict for e in effects if isinstance(e, PublishVerdict)]
    return record, [(each.status, each.action, each.cordon_gpus) for each in found]


ALONE = ("degraded", "reset_gpu", (3,))
WHOLE = judged(cordon="node", action="replace")


@pytest.mark.parametrize(
    ("faults", "settings", "expected"),
    [
        ([(fault(1), judged())], {}, [ALONE]),
        ([(fault(1), judged())], {"asked": False}, [("unhealthy", "reset_gpu", ())]),
        ([(fault(1), judged(cordon="node"))], {}, [("unhealthy", "reset_gpu", ())]),
        # The fault names no GPU.
        ([(fault(1, gpu=-1), judged())], {}, [("unhealthy", "reset_gpu", ())]),
        # One event shows as several faults of the GPU.
        ([(fault(1), judged()), (fault(2), judged()), (fault(3, code=95), judged())], {}, [ALONE]),
        # A second GPU; a serious fault, of the same GPU and of another.
        (
            [(fault(1), judged()), (fault(2, gpu=5), judged())],
            {},
            [ALONE, ("unhealthy", "reset_gpu", (3,))],
        ),
        ([(fault(1), judged()), (fault(2), WHOLE)], {}, [ALONE, ("unhealthy", "replace", (3,))]),
        (
            [(fault(1), judged()), (fault(2, gpu=0), WHOLE)],
            {},
            [ALONE, ("unhealthy", "replace", (3,))],
        ),
        # Nothing is taken out of an unhealthy node.
        ([(fault(1, gpu=0), WHOLE), (fault(2), judged())], {}, [("unhealthy", "replace", ())]),
        # What only degrades does not count, before or after.
        (
            [(fault(1, gpu=0), judged("degraded", cordon="node")), (fault(2), judged())],
            {},
            [("degraded", "reset_gpu", ()), ALONE],
        ),
        ([(fault(1), judged()), (fault(2), judged("degraded", cordon="node"))], {}, [ALONE]),
        # Results that are not fatal count up as they do for a node.
        (
            [(fault(1), judged(fatal=False)), (fault(2), judged(fatal=False))],
            {"needed": 2},
            [("degraded", "none", ()), ALONE],
        ),
        # A rule that cancels ends no cordon.
        (
            [(fault(1), judged()), (fault(2, code=92), judged("healthy", cancels=(48,)))],
            {},
            [ALONE],
        ),
    ],
)
def test_one_gpu_is_taken_out_of_use_and_no_second(
    faults: list[tuple[Fault, Judgement]], settings: dict[str, Any], expected: list[Any]
) -> None:
    """The rule allows it, the pool asks for it, and it is the node's first."""
    _, found = after(*faults, **settings)
    assert found == expected


_steps = st.lists(
    st.tuples(
        st.sampled_from(["healthy", "degraded", "unhealthy"]),
        st.sampled_from(["gpu", "node"]),
        st.integers(-1, 3),
        st.sampled_from([48, 63, 79]),
    ),
    max_size=15,
)


@given(_steps, st.integers(1, 3))
def test_it_never_hides_what_would_make_the_node_unhealthy(
    steps: list[tuple[str, str, int, int]], needed: int
) -> None:
    """A cordon has one GPU at most; the node is at least degraded where it would be unhealthy."""
    faults = [
        (
            fault(number, gpu, code),
            judged(result, fatal=False, cordon="gpu" if result == "unhealthy" else "node")
            if cordon == "gpu"
            else judged(result, fatal=False, cordon="node"),
        )
        for number, (result, cordon, gpu, code) in enumerate(steps, 1)
    ]
    off, plain = after(*faults, asked=False, needed=needed)
    on, verdicts = after(*faults, needed=needed)
    assert all(gpus == () for *_, gpus in plain)
    assert all(len(gpus) <= 1 and -1 not in gpus for *_, gpus in verdicts)
    if on.status != off.status:
        assert (off.status, on.status, len(on.cordon_gpus)) == ("unhealthy", "degraded", 1)
    named = {each.gpu_index for each, judgement in faults if judgement.cordon == "gpu"}
    assert set(on.cordon_gpus) <= named
    if verdicts:
        assert verdicts[-1][2] == on.cordon_gpus


def test_it_lasts_until_the_node_is_repaired_or_uncordoned() -> None:
    """Neither time nor a reboot by others ends a cordon, as if unhealthy; an uncordon ends it."""
    record, _ = after((fault(1), judged()))
    late = Trigger("t", 0, NOW + timedelta(days=30))
    record, _ = node_health.decide_review(record, late)
    reboot = Registered(id="r", time=NOW, pool="p", node="n", instance="n", boot_id="another")
    record, _ = node_health.decide_registered(record, reboot, seen(8))
    assert (record.status, record.cordon_gpus) == ("degraded", (3,))
    cleared = Uncordoned(id="u", time=late.now, pool="p", node="n", cleared_at=late.now)
    record, effects = node_health.decide_uncordoned(record, cleared, Trigger("u", 9, late.now))
    assert (record.status, record.cordon_gpus) == ("healthy", ())
    (published,) = (e.verdict for e in effects if isinstance(e, PublishVerdict))
    assert published.cordon_gpus == ()


@pytest.mark.parametrize(("recorded", "again"), [((), True), ((3,), False)])
def test_a_lost_verdict_about_a_gpu_is_published_again(
    recorded: tuple[int, ...], *, again: bool
) -> None:
    """The lost verdict is noticed even where the node was degraded before."""
    record, _ = after((fault(1), judged()))
    node = NodeRecord(pool="p", node="n", health="degraded", faulty_gpus=recorded)
    found = missing_verdict(record, node, NOW + timedelta(minutes=10))
    assert (found is not None) is again
    assert found is None or found.cordon_gpus == (3,)


def test_the_shipped_policy_allows_it_for_memory_errors_alone() -> None:
    """Faults of links, of the bus or of the whole board take the node out."""
    rules = load_policy(resource("health-policy.yaml")).rules
    allowed = {each.name for each in rules if each.cordon == "gpu"}
    assert allowed == {"memory-uncorrectable", "memory-contained-reset"}


POLICY = """
version: 1
metadata: {{name: p}}
rules:
  - name: r
    description: d
    condition: event.code == 48
    {keys}
    cordon: gpu
  - {{name: rest, description: d, condition: "true", result: healthy}}
"""


@pytest.mark.parametrize(
    ("keys", "refusal"),
    [
        ("result: unhealthy\n    action: reset_gpu", ""),
        ("result: unhealthy\n    action: inspect", ""),
        ("result: unhealthy\n    action: replace", "`action: reset_gpu` or `inspect`"),
        ("result: degraded\n    action: reset_gpu", "no effect on a degraded result"),
        ("result: healthy", "no effect on a healthy result"),
    ],
)
def test_a_policy_says_cordon_only_where_it_has_an_effect(keys: str, refusal: str) -> None:
    """A cordon of the GPU takes the place of an unhealthy node, so only such a rule may have it."""
    text = POLICY.format(keys=keys)
    if not refusal:
        assert parse_policy("p.yaml", text.encode()).rules[0].cordon == "gpu"
        return
    with pytest.raises(ConfigurationError, match=refusal):
        parse_policy("p.yaml", text.encode())
