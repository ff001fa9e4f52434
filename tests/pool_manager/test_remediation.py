"""An unhealthy node gets a remedy from the ladder, or is left to operators."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.duration import Duration
from schemas.enums import Action, AttemptOutcome, Remediation, SagaKind
from schemas.node_records import CloudNotice, GpuUse, NodeRecord, RemediationAttempt
from schemas.pool_events import OperatorNeeded
from schemas.pool_records import OpenSaga
from schemas.settings import BudgetSpec, HealthSpec, PluginSettings, WindowSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import NodeUse, PoolSnapshot, Work
from services.pool_manager.planner.remediation import remedy_selection
from services.pool_manager.planner.remediator import (
    REPLACE,
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
    """Return an attempt at remediating a node."""
    name = f"{kind}-{ago.total_seconds():.0f}"
    return RemediationAttempt(
        saga=name, kind=kind, fault_signature=what, at=NOW - ago, outcome=outcome, reason="no"
    )


def unhealthy(action: Action = "reset_gpu", **changes: object) -> NodeRecord:
    """An unhealthy node whose verdict has this action."""
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
        (unhealthy("none"), (), "replace", (0, 0)),
        (unhealthy("restart_app"), (), "replace", (0, 0)),
        (unhealthy("replace"), (), "replace", (0, 0)),
        (unhealthy("inspect"), (), "inspect", (0, 0)),
        (unhealthy(), (), "reset-gpu", (1, 3)),
        (unhealthy(), (RESET,), "reset-gpu", (2, 3)),
        (unhealthy(), (RESET, RESET), "reboot", (3, 3)),
        (unhealthy(), (RESET, RESET, REBOOT), "replace", (0, 0)),
        (unhealthy(), (FAILED_RESET,), "reboot", (2, 3)),
        (unhealthy(), (FAILED_RESET, FAILED_REBOOT), "replace", (0, 0)),
        (unhealthy(), (RESET, FAILED_RESET), "reboot", (3, 3)),
        (unhealthy(), (OLD, OLD), "reset-gpu", (1, 3)),
        (unhealthy(), (OLD, RESET), "reset-gpu", (2, 3)),
        (unhealthy(), (CANCELLED, CANCELLED), "reset-gpu", (1, 3)),
        (unhealthy(lost=True), (), "reboot", (1, 3)),
        (unhealthy("reboot"), (), "reboot", (1, 2)),
        (unhealthy("reboot"), (REBOOT,), "reboot", (2, 2)),
        (unhealthy("reboot"), (REBOOT, REBOOT), "replace", (0, 0)),
        (unhealthy("reboot"), (FAILED_REBOOT,), "replace", (0, 0)),
        (unhealthy("reboot"), (RESET, RESET), "reboot", (3, 3)),
        (node("a", lost=True, provider_state="present"), (), "reboot", (1, 2)),
        (node("a", lost=True), (FAILED_REBOOT,), "replace", (0, 0)),
        (node("a", lost=True, health="degraded", health_action="inspect"), (), "reboot", (1, 2)),
        (node("a", lost=True, provider_state="gone"), (), "replace", (0, 0)),
    ],
)
def test_ladder_takes_the_mildest_remedy_that_may_help(
    case: NodeRecord, attempts: Sequence[RemediationAttempt], remedy: str, nth: tuple[int, int]
) -> None:
    """The ladder begins at the verdict's action, past remedies that failed or helped too often."""
    choice = LADDER.choose(case, attempts, NOW)
    assert (remedy, nth) == (choice.remedy, (choice.attempt, choice.attempts_max))


OFF_THE_BUS = unhealthy("replace", health_code=79, restarts_cold=True)


@pytest.mark.parametrize("remediator", [Replace(options=Replace.Options()), LADDER])
@pytest.mark.parametrize(
    ("case", "attempts", "remedy"),
    [
        (OFF_THE_BUS, (), "reboot"),
        (OFF_THE_BUS, (CANCELLED,), "reboot"),
        (OFF_THE_BUS, (attempt("reboot", "failed"),), "replace"),
        (OFF_THE_BUS, (attempt("reboot", "recovered"),), "replace"),
        (OFF_THE_BUS, (attempt("reboot", ago=25 * HOUR),), "reboot"),
        (msgspec.structs.replace(OFF_THE_BUS, health_code=95), (), "replace"),
        (msgspec.structs.replace(OFF_THE_BUS, restarts_cold=False), (), "replace"),
        (msgspec.structs.replace(OFF_THE_BUS, lost=True, provider_state="gone"), (), "replace"),
    ],
)
def test_a_machine_is_switched_off_and_on_once_before_it_is_given_up(
    remediator: Remediator,
    case: NodeRecord,
    attempts: tuple[RemediationAttempt, ...],
    remedy: Remediation,
) -> None:
    """The machine has a GPU off the bus, and its provider can do it; again a day later."""
    assert remediator.choose(case, attempts, NOW).remedy == remedy


@given(
    st.sampled_from(["reset_gpu", "reboot", "replace", "none"]),
    st.integers(1, 10),
    st.lists(st.sampled_from(["recovered", "failed"]), min_size=30, max_size=30),
)
def test_ladder_always_ends(action: Action, tries: int, outcomes: list[AttemptOutcome]) -> None:
    """A node still unhealthy is replaced after `tries` plus two attempts, however these end."""
    ladder = Ladder(options=Ladder.Options(tries=tries))
    attempts: list[RemediationAttempt] = []
    for outcome in outcomes:
        choice = ladder.choose(unhealthy(action), attempts, NOW)
        if choice.remedy == "replace":
            break
        assert choice.remedy in ("reset-gpu", "reboot")
        assert 1 <= choice.attempt <= choice.attempts_max
        attempts.append(attempt(choice.remedy, outcome))
    assert "replace" == choice.remedy
    assert len(attempts) <= tries + 1


def test_reason_names_the_attempts() -> None:
    """The reason of the final replacement lists the earlier attempts."""
    reason = LADDER.choose(unhealthy(), (RESET, RESET, FAILED_REBOOT), NOW).reason
    assert "a GPU reset has not helped, 2 times; a reboot failed: no" == reason


# --- a pool's decision ----------------------------------------------------------------------------


def under(remediator: Remediator, *nodes: NodeRecord, **changes: object) -> PoolSnapshot:
    """Return a pool with room for one disruption, and its remediator."""
    made = spec(budget=BudgetSpec(max_quarantined=0, max_unavailable=1), **changes)
    record = msgspec.structs.replace(pool(len(nodes)), spec=made)
    return replace(snapshot(record, *nodes), remediator=remediator)


def started(decided: PoolSnapshot) -> list[tuple[str, str]]:
    """The sagas that a plan starts: kind and node."""
    return [(each.kind, each.node) for each in plan(decided, NOW).start.values()]


def test_saga_names_its_attempt_and_target() -> None:
    """The GPU by UUID, the boot, the fault signature, and why this remedy."""
    seven = msgspec.structs.replace(
        unhealthy(), health_gpu=1, attempts=(RESET, RESET), boot_id="b1"
    )
    (opened,) = plan(under(LADDER, seven, node("b")), NOW).start.values()

    assert ("reboot", "xid-95", "b1", 3, 3) == (
        opened.kind,
        opened.fault_signature,
        opened.boot_id,
        opened.attempt,
        opened.attempts_max,
    )
    assert "XID 95; a GPU reset has not helped, 2 times" == opened.reason


def test_attempts_at_another_fault_signature_do_not_count() -> None:
    """Two faults do not push each other up the ladder."""
    other = tuple(
        msgspec.structs.replace(each, fault_signature="xid-48") for each in (RESET, RESET)
    )
    assert [("reset-gpu", "a")] == started(under(LADDER, unhealthy(attempts=other), node("b")))


def test_reset_counts_in_the_budget() -> None:
    """A reset takes a node out of service like any other saga."""
    one, two = unhealthy(), msgspec.structs.replace(unhealthy(), node="b")
    assert 1 == len(started(under(LADDER, one, two, node("c"))))


def test_failing_launches_hold_back_only_replacements() -> None:
    """A reset needs no launch."""
    decided = under(LADDER, unhealthy(), node("b"))
    failing = msgspec.structs.replace(decided.record, failures=2, retry_at=NOW + HOUR)
    assert [("reset-gpu", "a")] == started(replace(decided, record=failing))
    assert [] == started(under_with(decided, failing, unhealthy("replace")))


def under_with(decided: PoolSnapshot, record: object, *nodes: NodeRecord) -> PoolSnapshot:
    """Return the same with another record and other nodes."""
    return replace(decided, record=record, nodes=Nodes(nodes))


def test_alert_is_published_once_and_performs_nothing() -> None:
    """The alert is published again only when another fault occurs on the node."""
    decided = under(AlertOnly(options=AlertOnly.Options()), unhealthy(health_fault="f1"), node("b"))
    first = plan(decided, NOW)
    second = plan(replace(decided, record=first.record), NOW)
    worse = replace(
        decided, record=first.record, nodes=Nodes([unhealthy(health_fault="f2"), node("b")])
    )

    (event,) = first.events
    assert isinstance(event, OperatorNeeded)
    assert ("a", "XID 95", False) == (event.node, event.reason, event.cordoned)
    assert "navarch replace a" in event.remedy
    assert ({}, (), {}) == (first.start, second.events, second.start)
    assert "closed" == first.record.breaker.state
    assert 1 == len(plan(worse, NOW).events)
    well = plan(replace(decided, record=first.record, nodes=Nodes([node("a"), node("b")])), NOW)
    assert {} == well.record.operator_notified


def test_node_to_inspect_is_cordoned_and_published_once() -> None:
    """The node then waits for an operator, and holds back no other."""
    decided = under(LADDER, unhealthy("inspect", health_fault="f1"), node("b"))
    first = plan(decided, NOW)
    cordoned = (unhealthy("inspect", health_fault="f1", cordoned=True), node("b"))
    record = msgspec.structs.replace(first.record, open={})
    then = plan(replace(decided, record=record, nodes=Nodes(cordoned)), NOW)

    assert ["cordon"] == [each.kind for each in first.start.values()]
    assert [True] == [e.cordoned for e in first.events if isinstance(e, OperatorNeeded)]
    assert ({}, ()) == (then.start, then.events)


def test_node_being_cordoned_counts_in_the_budget() -> None:
    """The second node waits also before the cordon of the first is done, with room for one."""
    two = msgspec.structs.replace(unhealthy("inspect"), node="b")
    decided = under(LADDER, unhealthy("inspect"), two, node("c"), node("d"))
    first = plan(decided, NOW)
    again = plan(replace(decided, record=first.record), NOW)
    assert ["a"] == [each.node for each in first.start.values()]
    assert {} == again.start


def test_failing_remediator_is_published_and_performs_nothing() -> None:
    """A remediator may be third-party code."""

    class Broken:
        def choose(
            self, node: NodeRecord, attempts: Sequence[RemediationAttempt], now: datetime
        ) -> RemedyChoice:
            raise KeyError((node, attempts, now) and "rack")

    (event,) = plan(under(Broken(), unhealthy()), NOW).events
    assert isinstance(event, OperatorNeeded)
    assert "KeyError: 'rack'" in event.remedy


def test_preempted_node_is_replaced_whatever_the_remediator() -> None:
    """No remedy helps against a notice."""
    notice = CloudNotice(kind="preemption", at=NOW, deadline=NOW + timedelta(minutes=2))
    taken = node("a", notices={"n1": notice})
    assert [("replace", "a")] == started(under(AlertOnly(options=AlertOnly.Options()), taken))


def degraded(action: Action) -> NodeRecord:
    """Return a node with a deferrable fault."""
    return msgspec.structs.replace(unhealthy(action), health="degraded", health_kind="row_remap")


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
def test_degraded_node_is_remediated_in_a_service_window(
    action: Action, windows: tuple[WindowSpec, ...], kinds: list[str]
) -> None:
    """Never replaced, and left alone in a pool without such windows."""
    decided = under(LADDER, degraded(action), node("b"), windows=windows)
    assert kinds == [kind for kind, _ in started(decided)]


@pytest.mark.parametrize(
    ("busy", "minutes", "work", "kinds"),
    [
        (False, 6, "none", ["reset-gpu"]),
        (False, 6, "runs", []),
        (False, 6, "unknown", []),
        (False, 4, "none", []),
        (True, 60, "none", []),
    ],
)
def test_degraded_node_without_work_needs_no_window(
    busy: bool, minutes: int, work: Work, kinds: list[str]
) -> None:
    """A pause between two steps of a job is no rest, nor is a job that uses no GPU."""
    gpus = GpuUse(busy=busy, since=NOW - timedelta(minutes=minutes))
    resting = NodeUse(gpus=gpus, work=work)
    asked = under(LADDER, degraded("reset_gpu"), node("b"))
    assert ["a"] == remedy_selection.asked_about(asked, NOW)
    used = replace(asked, use={"a": resting})
    assert kinds == [kind for kind, _ in started(used)]


def test_use_is_not_read_where_nothing_depends_on_it() -> None:
    """A window decides, or the pool's remediation resets nothing."""
    served = under(LADDER, degraded("reset_gpu"), windows=(WHOLE_DAY,))
    for asked in (served, under(REPLACE, degraded("reset_gpu"))):
        assert [] == remedy_selection.asked_about(asked, NOW)


def test_unhealthy_nodes_go_before_degraded_ones() -> None:
    """The unhealthy node is first where there is room for one."""
    two = msgspec.structs.replace(degraded("reset_gpu"), node="b")
    decided = under(LADDER, unhealthy(), two, node("c"), windows=(WHOLE_DAY,))
    assert [("reset-gpu", "a")] == started(decided)


def test_no_node_has_two_sagas() -> None:
    """A node that is being reset gets no other saga."""
    decided = under(LADDER, unhealthy(), node("b"))
    taken = {"s": OpenSaga(kind="reset-gpu", node="a", since=NOW)}
    record = msgspec.structs.replace(decided.record, open=taken)
    assert [] == started(replace(decided, record=record))


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


class CustomRemediator:
    """A third-party remediator is loaded by its module and class."""

    class Options(Replace.Options, frozen=True, kw_only=True):
        """Options of the remediator require a number."""

        patience: int

    def __init__(self, *, options: Options) -> None:
        self.patience = options.patience


def loaded(directory: Path, remediation: str) -> Remediator:
    """The remediator that a configuration names."""
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
def test_remediation_by_name(tmp_path: Path, remediation: str, kind: type) -> None:
    """A remediation is loaded by name alone, or with options."""
    assert isinstance(loaded(tmp_path, remediation), kind)


def test_remediation_by_module_and_class(tmp_path: Path) -> None:
    """A plugin gets its own options."""
    own = loaded(tmp_path, f"{{type: '{__name__}:CustomRemediator', patience: 3}}")
    assert 3 == own.plugin.patience


def test_ladder_options_apply(tmp_path: Path) -> None:
    """A ladder with one try reboots after the first reset that did not last."""
    ladder = loaded(tmp_path, "{type: ladder, tries: 1}")
    assert "reboot" == ladder.choose(unhealthy(), (RESET,), NOW).remedy


@pytest.mark.parametrize(
    ("remediation", "words"),
    [
        ("leader", ":9: pools.training.health.remediation.type: no navarch.remediators named"),
        ("{type: ladder, tires: 3}", ":9: pools.training.health.remediation.tires: unknown key"),
        ("{type: ladder, tries: 0}", ":9: pools.training.health.remediation.tries: must be"),
        ("{tries: 3}", ":9: pools.training.health.remediation: `type` is missing"),
    ],
)
def test_invalid_remediation_names_file_line_and_key(
    tmp_path: Path, remediation: str, words: str
) -> None:
    """The error occurs at start and lists the valid names."""
    with pytest.raises(ConfigurationError) as error:
        loaded(tmp_path, remediation)
    assert words in str(error.value)


def test_pool_with_an_unknown_remediator_is_left_alone() -> None:
    """The pool's unhealthy nodes are published, and nothing is performed."""
    wanted = HealthSpec(remediation=PluginSettings(type="no_such_module:Class"))
    record = msgspec.structs.replace(pool(1), spec=spec(health=wanted))
    assert isinstance(Remediators({}, None).of(record), AlertOnly)


def test_default_remediation_is_replace() -> None:
    """The default remediator has no other remedy."""
    text = CONFIG.format(remediation="replace").replace("      remediation: replace\n", "")
    pools = parse_settings("navarch.yaml", text.replace("    health:\n", ""), {}).pools
    assert "replace" == pools["training"].health.remediation.type
