"""The step `check`: an agent is asked to test its host, on a real server."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from schemas import subjects
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.messages import encode
from schemas.node_events import CheckResult
from schemas.step_data import CheckInputs
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.primitives.clock import SystemClock
from services.provisioner.node_recovery import diagnostic_step
from services.provisioner.node_recovery.diagnostic_step import DiagnosticStep
from services.saga.participant import Command, StepFailure

PASSED = Diagnosis(ok=True, checks=(CheckResult(name="dcgm", ok=True, detail="8 GPUs pass"),))
FAILED = Diagnosis(
    ok=False,
    checks=(
        CheckResult(name="boot", ok=True, detail="fine"),
        CheckResult(name="dcgm", ok=False, detail="GPU 3: memory"),
    ),
)
REFUSED = Diagnosis(ok=False, refused="a test is under way")


def command() -> Command:
    """Test training-1 with dcgm at level 2, within a minute."""
    inputs = CheckInputs(pool="training", node="training-1", checks=("dcgm",), level=2)
    return Command(
        saga="s",
        step="check",
        inputs=msgspec.to_builtins(inputs),
        id="s.check.started",
        deadline=datetime.now(UTC) + timedelta(seconds=60),
    )


async def agent(bus: NatsBus, answers: Sequence[Diagnosis]) -> list[DiagnoseRequest]:
    """An agent that answers so, one after the other; what it was asked."""
    asked: list[DiagnoseRequest] = []
    left = list(answers)

    async def answer(data: bytes, _: Headers) -> bytes:
        asked.append(msgspec.json.decode(data, type=DiagnoseRequest))
        return encode(left.pop(0))

    await bus.answer(subjects.node_command("training", "training-1", "diagnose"), answer)
    return asked


async def test_what_passed_is_reported(bus: NatsBus) -> None:
    """The agent gets the test and its level; the step succeeds with what the test said."""
    asked = await agent(bus, [PASSED])
    outputs = await DiagnosticStep(bus, SystemClock()).check(command())

    assert [DiagnoseRequest(checks=("dcgm",), level=2)] == asked
    assert "dcgm: 8 GPUs pass" == outputs.detail


async def test_what_failed_is_final_and_named(bus: NatsBus) -> None:
    """A failed test fails the step with what was found; what passed beside it is left out."""
    asked = await agent(bus, [FAILED])
    with pytest.raises(StepFailure) as failure:
        await DiagnosticStep(bus, SystemClock()).check(command())

    assert ("the diagnostic failed: dcgm: GPU 3: memory", "not-admitted") == (
        failure.value.reason,
        failure.value.error,
    )
    assert 1 == len(asked)


@pytest.mark.parametrize(
    ("checks", "failing", "since", "error"),
    [
        (("boot",), "nvml", None, "test-failed"),
        (("boot", "dcgm"), "nvml", None, "test-failed"),
        (("boot", "dcgm"), "dcgm", None, "not-admitted"),
        (("dcgm",), "dcgm", None, "not-admitted"),
        (("boot",), "nvml", datetime(2026, 1, 1, tzinfo=UTC), "not-admitted"),
    ],
    ids=["nvml", "nvml beside a tool", "a tool", "a tool alone", "after a repair"],
)
async def test_only_nvml_in_a_recheck_is_evidence(
    bus: NatsBus, checks: tuple[str, ...], failing: str, since: datetime | None, error: str
) -> None:
    """A tool's finding is a fault of its own, and a tool that cannot run says nothing."""
    found = Diagnosis(ok=False, checks=(CheckResult(name=failing, ok=False, detail="no answer"),))
    await agent(bus, [found])
    inputs = CheckInputs(pool="training", node="training-1", checks=checks, level=1, since=since)
    asked = replace(command(), inputs=msgspec.to_builtins(inputs))
    with pytest.raises(StepFailure) as failure:
        await DiagnosticStep(bus, SystemClock()).check(asked)
    assert failure.value.error == error


async def test_an_agent_that_is_away_or_busy_is_asked_again(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No agent answers, then it refuses, then it tests: one result."""
    monkeypatch.setattr(diagnostic_step, "RETRY_SECONDS", 0.01)
    checked = asyncio.create_task(DiagnosticStep(bus, SystemClock()).check(command()))
    asked = await agent(bus, [REFUSED, PASSED])
    async with asyncio.timeout(60):
        outputs = await checked

    assert 2 == len(asked)
    assert "dcgm: 8 GPUs pass" == outputs.detail
