"""Recommendations that are not followed: recorded when they change, and shown as a sentence."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.autoscaling_advice import AutoscalingAdvice
from schemas.duration import decode_hook
from schemas.pool_events import Scaled
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec, Setting
from services.operator_text.advice_text import advice_sentence, is_notable
from services.operator_text.quantities import local_time, localized
from services.pool_manager.autoscaling.autoscalers import PoolState, Recommendation
from services.pool_manager.autoscaling.scaling_decision import unanswered, unfollowed, with_advice
from services.simulator.inputs.scenario.scenario_file import read_text
from services.simulator.inputs.scenario.scenario_runner import run

NOW = datetime(2030, 1, 1, 10, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class FailingAutoscaler:
    """A third-party autoscaler that raises."""

    class Options(Setting, frozen=True, kw_only=True):
        """Offers no options."""

    def __init__(self, *, options: Options) -> None:
        """Accept any options."""

    def recommend(self, state: PoolState) -> Recommendation:
        """Raise a `LookupError`."""
        raise LookupError(f"no such pool as {state.pool}")


def record(desired: int = 4, scaled_at: datetime | None = None, **spec: Any) -> PoolRecord:
    """Return a pool of two to ten nodes with a cooldown of five minutes."""
    text = {"provider": "fake", "instance_type": "x", "min_nodes": 2, "max_nodes": 10, **spec}
    return PoolRecord(
        name="training",
        spec=msgspec.convert(text, PoolSpec, dec_hook=decode_hook),
        desired=desired,
        scaled_at=scaled_at,
    )


def asked(before: PoolRecord, nodes: int, now: datetime = NOW) -> AutoscalingAdvice | None:
    """Return the decision for a recommendation of this many nodes."""
    recommended = Recommendation(target_nodes=nodes, reason=f"{nodes} jobs")
    return unfollowed(before, recommended, "queue", now, 30.0)


RECENT = NOW - MINUTE


@pytest.mark.parametrize(
    ("before", "nodes", "limited_by", "detail", "until"),
    [
        (record(), 4, None, "", None),
        (record(scaled_at=RECENT), 6, "cooldown", "", RECENT + 5 * MINUTE),
        (record(scaled_at=RECENT), 99, "cooldown", "max_nodes is 10", RECENT + 5 * MINUTE),
        (record(10), 12, "limits", "max_nodes is 10", None),
        (record(2), 0, "limits", "min_nodes is 2", None),
        (record(mode="observe"), 6, "observe", "", None),
    ],
)
def test_decision_names_what_limits_the_recommendation(before, nodes, limited_by, detail, until):
    """The decision names the cooldown with its end, or a bound with its value."""
    advice = asked(before, nodes)
    found = (advice.limited_by, advice.detail, advice.until) if advice else (None, "", None)
    assert (limited_by, detail, until) == found


def test_advice_is_recorded_only_when_it_changes():
    """A new reason alone is recorded; `since` stays while the limit is the same."""
    full = record(10)
    first = with_advice(full, asked(full, 12))
    assert first is not None
    assert first.advice is not None
    again = msgspec.structs.replace(asked(full, 12, NOW + MINUTE), reason="13 jobs")
    assert with_advice(first, again) is None
    more = with_advice(first, asked(full, 15, NOW + 2 * MINUTE))
    assert more is not None
    assert more.advice is not None
    assert (NOW, 15) == (more.advice.since, more.advice.nodes)
    over = with_advice(more, None)
    assert over is not None
    assert over.advice is None
    assert with_advice(over, None) is None


SINCE = f"not followed since {local_time(NOW)}"
AGAIN = "It is asked again every 30s."
COOL = local_time(RECENT + 5 * MINUTE)
WORDS = {
    "cooldown": (
        asked(record(scaled_at=RECENT), 6),
        (
            f"The autoscaler (queue) asks for 6 nodes (6 jobs), {SINCE}: the last change of size "
            f"is too recent (cooldown); not before {COOL}."
        ),
    ),
    "limits": (
        asked(record(10), 12),
        f"The autoscaler (queue) asks for 12 nodes (12 jobs), {SINCE}: max_nodes is 10.",
    ),
    "idle": (
        asked(record(2), 1),
        f"The autoscaler (queue) asks for 1 node (1 jobs), {SINCE}: min_nodes is 2.",
    ),
    "failed": (
        unanswered("failed", "mine", "KeyError: 'x'", NOW, 30.0),
        (
            f"The autoscaler (mine) has failed since {local_time(NOW)}: KeyError: 'x'; the size "
            "stays as it is."
        ),
    ),
    "source": (
        unanswered("source", "queue", "no answer in 20 s", NOW, 30.0),
        (
            f"The metrics source of the autoscaler (queue) has not answered since "
            f"{local_time(NOW)}: no answer in 20 s; how many jobs wait is not known."
        ),
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_advice_as_a_sentence(name):
    """The recommendation, why it is not followed, and when it is evaluated again."""
    advice, words = WORDS[name]
    assert (f"{words} {AGAIN}", name != "idle") == (
        localized(advice_sentence(advice)),
        is_notable(advice),
    )


SCENARIO = """
name: kept
settings: {{server: {{autoscale_interval: 30s}}}}
pools:
  training: {{min_nodes: 1, max_nodes: 3, cooldown: 5m, autoscaling: {{type: {kind}}}}}
events:
  - {{at: 0, action: start_fleet}}
  - {{at: 1m, action: set_load, target: training, params: {{queue_depth: {jobs}}}}}
  {more}
duration: {duration}
assertions:
  - {{type: advice, target: training, expected: {expected}}}
"""
AWAY = "- {at: 1m, action: inject_failure, target: workload, params: {failure_type: network}}"


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("followed", {}),
        ("limits", {"jobs": 9}),
        (
            "cooldown",
            {"more": "- {at: 2m, action: set_load, target: training, params: {queue_depth: 1}}"},
        ),
        ("failed", {"kind": "'tests.autoscaling.test_scaling_decision:FailingAutoscaler'"}),
        ("source", {"more": AWAY}),
    ],
)
def test_advice_is_in_the_pools_record(expected, changes):
    """The advice is as the real pool-manager writes it, which is rarely."""
    values = {"kind": "queue", "jobs": 2, "more": "", "duration": "5m", "expected": expected}
    outcome = run(read_text("a.yaml", SCENARIO.format(**{**values, **changes})))
    assert [(True, "")] == [(each.ok, "") for each in outcome.checks], outcome.checks
    assert len([each for _, each in outcome.story if isinstance(each, Scaled)]) <= 1
