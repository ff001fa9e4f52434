"""A drill's fault is judged as far as the drill goes, and never counts beside real faults."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas.drill_orders import DrillStarted
from schemas.enums import DrillReach
from schemas.health_records import HealthRecord
from schemas.node_events import Fault, Uncordoned, Verdict
from services.health_monitor.rules import node_health
from services.health_monitor.rules.drill_faults import drill_fault, is_drill, limited
from services.health_monitor.rules.health_policy import Judgement
from services.health_monitor.rules.health_state import working_of
from services.health_monitor.rules.node_health import Decision, PublishVerdict, Trigger
from tests.health_monitor.conftest import Monitor, World, make_fault

Start = Callable[..., Awaitable[Monitor]]

NOW = datetime(2026, 11, 30, 7, tzinfo=UTC)
HEALTHY = HealthRecord(pool="training", node="n1", status="healthy")


def begun(reach: DrillReach = "drain", **fields: Any) -> DrillStarted:
    """Return the event of a drill with XID 79."""
    values = {"kind": "xid", "code": 79, "gpu_index": 3} | fields
    node = values.pop("node", "n1")
    return DrillStarted(
        id="drill-1", time=NOW, pool="training", node=node, reach=reach, by="ada", **values
    )


def seen(fault: Fault, sequence: int, seconds: float = 0.0) -> Trigger:
    """Return the message that is decided on."""
    return Trigger(fault.id, sequence, NOW + timedelta(seconds=seconds))


def judged(result: Any = "unhealthy", action: Any = "replace", **fields: Any) -> Judgement:
    """Return what a policy makes of a fault."""
    return Judgement(result=result, action=action, rule="r", policy="abc", **fields)


def drilled(
    record: HealthRecord, reach: DrillReach, judgement: Judgement, **fields: Any
) -> Decision:
    """Decide on a drill's fault."""
    event = begun(reach, **fields)
    fault = drill_fault(event)
    found = limited(judgement, event, working_of(record).windows)
    return node_health.decide_fault(record, fault, found, seen(fault, 1), unhealthy_after=3)


def real(record: HealthRecord, judgement: Judgement, sequence: int = 2) -> Decision:
    """Decide on a fault that the node has."""
    fault = make_fault(f"real-{sequence}", node="n1", time=NOW)
    return node_health.decide_fault(record, fault, judgement, seen(fault, sequence))


def verdicts(decision: Decision) -> list[Verdict]:
    """Return the verdicts of a decision."""
    return [each.verdict for each in decision[1] if isinstance(each, PublishVerdict)]


@pytest.mark.parametrize(
    ("reach", "result", "action", "expected"),
    [
        ("drain", "unhealthy", "replace", ("unhealthy", "inspect", "drain")),
        ("drain", "unhealthy", "none", ("unhealthy", "inspect", "drain")),
        ("act", "unhealthy", "replace", ("unhealthy", "replace", "act")),
        ("act", "unhealthy", "reboot", ("unhealthy", "reboot", "act")),
        ("drain", "degraded", "reset_gpu", ("degraded", "none", "drain")),
        ("act", "degraded", "reset_gpu", ("degraded", "reset_gpu", "act")),
    ],
)
def test_the_verdict_goes_as_far_as_the_drill(
    reach: DrillReach, result: str, action: str, expected: tuple[str, str, str]
) -> None:
    """One is enough whatever `unhealthy_after` is, and its text says that it is a drill."""
    record, effects = drilled(HEALTHY, reach, judged(result, action, cordon="gpu"))
    [verdict] = verdicts((record, effects))
    assert (verdict.status, verdict.action, verdict.drill) == expected
    assert verdict.reason.startswith("drill: XID 79")
    assert verdict.cordon_gpus == ()


def test_a_drill_that_the_policy_ignores_changes_nothing() -> None:
    """Such a fault would change nothing either."""
    record, effects = drilled(HEALTHY, "drain", judged("healthy", "none"))
    assert (record.status, verdicts((record, effects))) == ("healthy", [])


def test_a_drill_counts_in_no_window_and_ends_no_condition() -> None:
    """A real fault after it finds what real faults have left."""
    real_one = judged("degraded", "none", windows={"r/3": (1.0,)})
    before, _ = real(HEALTHY, real_one)
    counted = judged("healthy", "none", windows={"r/3": (1.0, 2.0)}, cancels=("xid",))
    after, _ = drilled(before, "drain", counted)
    assert working_of(after).windows == {"r/3": (1.0,)}
    assert working_of(after).conditions == working_of(before).conditions


@pytest.mark.parametrize("reach", ["drain", "act"])
@pytest.mark.parametrize("action", ["inspect", "reset_gpu", "replace"])
def test_a_real_fault_takes_the_place_of_a_drill(reach: DrillReach, action: str) -> None:
    """The real one decides, even where it calls for less than the drill did."""
    record, _ = drilled(HEALTHY, reach, judged())
    after, effects = real(record, judged("unhealthy", action))
    [verdict] = verdicts((after, effects))
    assert (verdict.action, verdict.drill, verdict.fault) == (action, "", "real-2")
    assert [each.fault for each in after.gpus] == ["real-2"]


def test_a_drill_never_takes_the_place_of_a_real_fault() -> None:
    """A drill that was ordered a moment before the fault hides nothing."""
    record, _ = real(HEALTHY, judged("unhealthy", "reboot"))
    after, effects = drilled(record, "act", judged("unhealthy", "replace"))
    assert verdicts((after, effects)) == []
    assert (after.action, after.drill, after.fault) == ("reboot", "", "real-2")
    assert after.gpus == record.gpus


def test_an_uncordon_ends_a_drill() -> None:
    """The node is healthy, and nothing of the drill is left."""
    record, _ = drilled(HEALTHY, "drain", judged())
    event = Uncordoned(id="u", time=NOW, pool="training", node="n1", reason="the drill is over")
    after, effects = node_health.decide_uncordoned(record, event, Trigger("u", 9, NOW))
    [verdict] = verdicts((after, effects))
    assert (after.status, after.drill, verdict.status, verdict.drill) == ("healthy", "") * 2


async def test_a_drill_reports_its_fault_once(start: Start, world: World) -> None:
    """The source is `drill`, and an event that is handled again reports the same fault."""
    await start()
    await world.register("n1")
    event = begun("drain", node="n1")
    await world.publish(event)
    await world.settled()
    await world.publish(event)
    await world.settled()
    [fault] = await world.events(Fault)
    assert is_drill(fault)
    assert (fault.kind, fault.code, fault.cause) == ("xid", 79, event.id)
    [verdict] = [each for each in await world.events() if each.status == "unhealthy"]
    assert (verdict.fault, verdict.drill) == (fault.id, "drain")
    record = await world.health("n1")
    assert record is not None
    assert record.drill == "drain"


async def test_a_fault_that_an_agent_calls_a_drill_counts_nowhere(
    start: Start, world: World
) -> None:
    """Neither as a drill nor as a fault: the agent might as well have sent nothing."""
    await start()
    await world.register("n1")
    await world.publish(make_fault("forged", node="n1", source="drill"))
    await world.settled()
    assert {each.status for each in await world.events()} == {"healthy"}
