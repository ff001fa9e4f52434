"""Which remedy a sick node gets: the ladder rung by rung, and what is left to people."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.duration import Duration
from schemas.enums import Action, AttemptOutcome, SagaKind
from schemas.node_records import CloudNotice, NodeRecord, RemediationAttempt
from schemas.pool_events import OperatorNeeded
from schemas.pool_records import OpenSaga
from schemas.settings import BudgetSpec, HealthSpec, PluginSettings, WindowSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.remediator import (
    AlertOnly,
    Ladder,
    Remediator,
    RemedyChoice,
    Replace,
)
from services.pool_manager.remediator_plugins import Remediators
from services.primitives.errors import ConfigurationError
from services.settings.settings_file import load_settings, parse_settings
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec

LADDER = Ladder(options=Ladder.Options())
HOUR = timedelta(hours=1)
WHOLE_DAY = WindowSpec(name="always", kind="service", start="0 0 * * *", duration=Duration(86_400))


def attempt(
    kind: SagaKind,
    outcome: AttemptOutcome = "recovered",
    ago: timedelta = HOUR,
    what: str = "xid-95",
) -> RemediationAttempt:
    """An attempt at curing a node."""
    name = f"{kind}-{ago.total_seconds():.0f}"
    return RemediationAttempt(
        saga=name, kind=kind, fault_signature=what, at=NOW - ago, outcome=outcome, reason="no"
    )


def sick(action: Action = "reset_gpu", **changes: object) -> NodeRecord:
    """An unhealthy node whose verdict calls for this."""
    made = node(
        "a",
        health="unhealthy",
        health_at=NOW,
        health_action=action,
        health_kind="xid",
        health_code=95,
        health_reason="XID 95",
    )
    return msgspec.structs.replace(made, **changes)


RESET, FAILED_RESET = attempt("reset-gpu"), attempt("reset-gpu", "failed")
REBOOT, FAILED_REBOOT = attempt("reboot"), attempt("reboot", "failed")
OLD = attempt("reset-gpu", ago=25 * HOUR)
CANCELLED = attempt("reset-gpu", "cancelled")


@pytest.mark.parametrize(
    ("case", "attempts", "remedy", "nth"),
    [
        (sick("none"), (), "replace", (0, 0)),
        (sick("restart_app"), (), "replace", (0, 0)),
        (sick("replace"), (), "replace", (0, 0)),
        (sick("inspect"), (), "inspect", (0, 0)),
        (sick(), (), "reset-gpu", (1, 3)),
        (sick(), (RESET,), "reset-gpu", (2, 3)),
        (sick(), (RESET, RESET), "reboot", (3, 3)),
        (sick(), (RESET, RESET, REBOOT), "replace", (0, 0)),
        (sick(), (FAILED_RESET,), "reboot", (2, 3)),
        (sick(), (FAILED_RESET, FAILED_REBOOT), "replace", (0, 0)),
        (sick(), (RESET, FAILED_RESET), "reboot", (3, 3)),
        (sick(), (OLD, OLD), "reset-gpu", (1, 3)),
        (sick(), (OLD, RESET), "reset-gpu", (2, 3)),
        (sick(), (CANCELLED, CANCELLED), "reset-gpu", (1, 3)),
        (sick(lost=True), (), "reboot", (1, 3)),
        (sick("reboot"), (), "reboot", (1, 2)),
        (sick("reboot"), (REBOOT,), "reboot", (2, 2)),
        (sick("reboot"), (REBOOT, REBOOT), "replace", (0, 0)),
        (sick("reboot"), (FAILED_REBOOT,), "replace", (0, 0)),
        (sick("reboot"), (RESET, RESET), "reboot", (3, 3)),
        (node("a", lost=True, provider_state="present"), (), "reboot", (1, 2)),
        (node("a", lost=True), (FAILED_REBOOT,), "replace", (0, 0)),
        (node("a", lost=True, provider_state="gone"), (), "replace", (0, 0)),
    ],
)
def test_the_ladder_takes_the_lowest_rung_that_may_help(
    case: NodeRecord, attempts: Sequence[RemediationAttempt], remedy: str, nth: tuple[int, int]
) -> None:
    """From what the verdict asks for upwards; past what failed, or helped too often."""
    choice = LADDER.choose(case, attempts, NOW)
    assert (remedy, nth) == (choice.remedy, (choice.attempt, choice.attempts_max))


@given(
    st.sampled_from(["reset_gpu", "reboot", "replace", "none"]),
    st.integers(1, 10),
    st.lists(st.sampled_from(["recovered", "failed"]), min_size=30, max_size=30),
)
def test_whatever_happens_the_ladder_ends(
    action: Action, tries: int, outcomes: list[AttemptOutcome]
) -> None:
    """However the attempts end, a node that stays sick is replaced after `tries` and two more."""
    ladder = Ladder(options=Ladder.Options(tries=tries))
    attempts: list[RemediationAttempt] = []
    for outcome in outcomes:
        choice = ladder.choose(sick(action), attempts, NOW)
        if choice.remedy == "replace":
            break
        assert choice.remedy in ("reset-gpu", "reboot")
        assert 1 <= choice.attempt <= choice.attempts_max
        attempts.append(attempt(choice.remedy, outcome))
    assert "replace" == choice.remedy
    assert len(attempts) <= tries + 1


def test_the_reason_tells_what_was_tried() -> None:
    """Whoever is replaced in the end has its story in the saga's reason."""
    told = LADDER.choose(sick(), (RESET, RESET, FAILED_REBOOT), NOW).reason
    assert "a GPU reset has not helped, 2 times; a reboot failed: no" == told


# --- a pool's decision ----------------------------------------------------------------------------


def under(remediator: Remediator, *nodes: NodeRecord, **changes: object) -> PoolSnapshot:
    """A pool with room for one, and what chooses for it."""
    made = spec(budget=BudgetSpec(max_unavailable=1), **changes)
    record = msgspec.structs.replace(pool(len(nodes)), spec=made)
    return replace(snapshot(record, *nodes), remediator=remediator)


def begun(decided: PoolSnapshot) -> list[tuple[str, str]]:
    """What a decision begins: kind and node."""
    return [(each.kind, each.node) for each in plan(decided, NOW).start.values()]


def test_a_saga_says_which_attempt_it_is_and_on_what() -> None:
    """The GPU by its UUID, the boot, the fault signature, and why it is this rung."""
    seven = msgspec.structs.replace(sick(), health_gpu=1, attempts=(RESET, RESET), boot_id="b1")
    (opened,) = plan(under(LADDER, seven, node("b")), NOW).start.values()

    assert ("reboot", "xid-95", "b1", 3, 3) == (
        opened.kind,
        opened.fault_signature,
        opened.boot_id,
        opened.attempt,
        opened.attempts_max,
    )
    assert "XID 95; a GPU reset has not helped, 2 times" == opened.reason


def test_attempts_at_another_sickness_do_not_count() -> None:
    """Two faults do not push each other up the ladder."""
    other = tuple(
        msgspec.structs.replace(each, fault_signature="xid-48") for each in (RESET, RESET)
    )
    assert [("reset-gpu", "a")] == begun(under(LADDER, sick(attempts=other), node("b")))


def test_a_reset_keeps_to_the_budget() -> None:
    """It takes a node out of service like any other saga."""
    one, two = sick(), msgspec.structs.replace(sick(), node="b")
    assert 1 == len(begun(under(LADDER, one, two, node("c"))))


def test_failing_launches_hold_back_replacements_alone() -> None:
    """A reset leaves no gap."""
    decided = under(LADDER, sick(), node("b"))
    failing = msgspec.structs.replace(decided.record, failures=2, retry_at=NOW + HOUR)
    assert [("reset-gpu", "a")] == begun(replace(decided, record=failing))
    assert [] == begun(under_with(decided, failing, sick("replace")))


def under_with(decided: PoolSnapshot, record: object, *nodes: NodeRecord) -> PoolSnapshot:
    """The same with another record and other nodes."""
    return replace(decided, record=record, nodes=Nodes(nodes))


def test_alert_tells_once_and_touches_nothing() -> None:
    """And again only when something else happens to the node."""
    decided = under(AlertOnly(options=AlertOnly.Options()), sick(health_fault="f1"), node("b"))
    first = plan(decided, NOW)
    second = plan(replace(decided, record=first.record), NOW)
    worse = replace(decided, record=first.record, nodes=Nodes([sick(health_fault="f2"), node("b")]))

    (event,) = first.events
    assert isinstance(event, OperatorNeeded)
    assert ("a", "XID 95", False) == (event.node, event.reason, event.cordoned)
    assert "navarch replace a" in event.remedy
    assert ({}, (), {}) == (first.start, second.events, second.start)
    assert "closed" == first.record.breaker.state
    assert 1 == len(plan(worse, NOW).events)
    well = plan(replace(decided, record=first.record, nodes=Nodes([node("a"), node("b")])), NOW)
    assert {} == well.record.operator_notified


def test_what_is_to_be_inspected_is_cordoned_and_told() -> None:
    """Once; then it waits for somebody, and holds nobody up."""
    decided = under(LADDER, sick("inspect", health_fault="f1"), node("b"))
    first = plan(decided, NOW)
    cordoned = (sick("inspect", health_fault="f1", cordoned=True), node("b"))
    record = msgspec.structs.replace(first.record, open={})
    then = plan(replace(decided, record=record, nodes=Nodes(cordoned)), NOW)

    assert ["cordon"] == [each.kind for each in first.start.values()]
    assert [True] == [e.cordoned for e in first.events if isinstance(e, OperatorNeeded)]
    assert ({}, ()) == (then.start, then.events)


def test_a_node_that_is_being_cordoned_counts_against_the_budget() -> None:
    """Also before the cordon has come about: with room for one, the second waits."""
    two = msgspec.structs.replace(sick("inspect"), node="b")
    decided = under(LADDER, sick("inspect"), two, node("c"), node("d"))
    first = plan(decided, NOW)
    again = plan(replace(decided, record=first.record), NOW)
    assert ["a"] == [each.node for each in first.start.values()]
    assert {} == again.start


def test_a_remediator_that_fails_is_told_of_and_nothing_is_touched() -> None:
    """It is somebody else's code."""

    class Broken:
        def choose(
            self, node: NodeRecord, attempts: Sequence[RemediationAttempt], now: datetime
        ) -> RemedyChoice:
            raise KeyError((node, attempts, now) and "rack")

    (event,) = plan(under(Broken(), sick()), NOW).events
    assert isinstance(event, OperatorNeeded)
    assert "KeyError: 'rack'" in event.remedy


def test_what_the_cloud_takes_is_replaced_whatever_the_remediation() -> None:
    """A notice is no fault signature to be cured."""
    notice = CloudNotice(kind="preemption", at=NOW, deadline=NOW + timedelta(minutes=2))
    taken = node("a", notices={"n1": notice})
    assert [("replace", "a")] == begun(under(AlertOnly(options=AlertOnly.Options()), taken))


def degraded(action: Action) -> NodeRecord:
    """A node with something that can wait."""
    return msgspec.structs.replace(sick(action), health="degraded", health_kind="row_remap")


@pytest.mark.parametrize(
    ("action", "windows", "kinds"),
    [
        ("reset_gpu", (WHOLE_DAY,), ["reset-gpu"]),
        ("reboot", (WHOLE_DAY,), ["reboot"]),
        ("replace", (WHOLE_DAY,), []),
        ("inspect", (WHOLE_DAY,), []),
        ("none", (WHOLE_DAY,), []),
        ("reset_gpu", (), []),
    ],
)
def test_a_degraded_node_is_mended_in_a_service_window(
    action: Action, windows: tuple[WindowSpec, ...], kinds: list[str]
) -> None:
    """Never replaced, and left alone where nobody has said when it may be disturbed."""
    decided = under(LADDER, degraded(action), node("b"), windows=windows)
    assert kinds == [kind for kind, _ in begun(decided)]


def test_what_can_wait_has_what_the_sick_leave() -> None:
    """With room for one, the unhealthy node is first."""
    two = msgspec.structs.replace(degraded("reset_gpu"), node="b")
    decided = under(LADDER, sick(), two, node("c"), windows=(WHOLE_DAY,))
    assert [("reset-gpu", "a")] == begun(decided)


def test_no_node_has_two_sagas() -> None:
    """A node that is being reset is left to that."""
    decided = under(LADDER, sick(), node("b"))
    taken = {"s": OpenSaga(kind="reset-gpu", node="a", since=NOW)}
    record = msgspec.structs.replace(decided.record, open=taken)
    assert [] == begun(replace(decided, record=record))


# --- configuration --------------------------------------------------------------------------------

CONFIG = """providers: {{fake: {{}}}}
pools:
  training:
    provider: fake
    instance_type: t
    min_nodes: 1
    max_nodes: 2
    health:
      remediation: {remediation}
"""


class Own:
    """A remediator of somebody else's."""

    class Options(Replace.Options, frozen=True, kw_only=True):
        """Its options."""

        patience: int

    def __init__(self, *, options: Options) -> None:
        self.patience = options.patience


def loaded(directory: Path, remediation: str) -> Remediator:
    """What a configuration file names."""
    file = directory / "navarch.yaml"
    file.write_text(CONFIG.format(remediation=remediation))
    pools = load_settings(file, {}).pools
    record = msgspec.structs.replace(pool(1), spec=pools["training"])
    return Remediators(pools, file).of(record)


@pytest.mark.parametrize(
    ("remediation", "kind"),
    [
        ("replace", Replace),
        ("ladder", Ladder),
        ("alert", AlertOnly),
        ("{type: ladder, tries: 3, window: 6h}", Ladder),
    ],
)
def test_a_pool_names_its_remediation(tmp_path: Path, remediation: str, kind: type) -> None:
    """By name, or with options."""
    assert isinstance(loaded(tmp_path, remediation), kind)


def test_a_plugin_is_named_by_module_and_class(tmp_path: Path) -> None:
    """With its own options."""
    own = loaded(tmp_path, f"{{type: '{__name__}:Own', patience: 3}}")
    assert 3 == own.patience


def test_options_count(tmp_path: Path) -> None:
    """A ladder with one try reboots after the first reset that did not last."""
    ladder = loaded(tmp_path, "{type: ladder, tries: 1}")
    assert "reboot" == ladder.choose(sick(), (RESET,), NOW).remedy


@pytest.mark.parametrize(
    ("remediation", "words"),
    [
        ("leader", ":9: pools.training.health.remediation.type: no navarch.remediators named"),
        ("{type: ladder, tires: 3}", ":9: pools.training.health.remediation.tires: unknown key"),
        ("{type: ladder, tries: 0}", ":9: pools.training.health.remediation.tries: must be"),
        ("{tries: 3}", ":9: pools.training.health.remediation: `type` is missing"),
    ],
)
def test_a_wrong_remediation_names_file_line_and_key(
    tmp_path: Path, remediation: str, words: str
) -> None:
    """Before anything runs, and with the names that there are."""
    with pytest.raises(ConfigurationError) as error:
        loaded(tmp_path, remediation)
    assert words in str(error.value)


def test_a_pool_of_another_configuration_is_left_alone_where_its_plugin_is_not_here() -> None:
    """Its sick nodes are told of, and nothing is risked."""
    wanted = HealthSpec(remediation=PluginSettings(type="no_such_module:Class"))
    record = msgspec.structs.replace(pool(1), spec=spec(health=wanted))
    assert isinstance(Remediators({}, None).of(record), AlertOnly)


def test_the_default_is_to_replace() -> None:
    """As before there were ladders."""
    text = CONFIG.format(remediation="replace").replace("      remediation: replace\n", "")
    pools = parse_settings("navarch.yaml", text.replace("    health:\n", ""), {}).pools
    assert "replace" == pools["training"].health.remediation.type
