"""The step `check`: requests diagnostics from a node's agent, and fails if they fail.

The agent may still be starting, or refuse because another test runs: the request is repeated until
the step's deadline. A failed test is final, and its findings are reported.
"""

import logging
from datetime import datetime
from typing import Any, Final

import msgspec

from schemas import subjects
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.enums import NOT_ADMITTED, TEST_FAILED, Action
from schemas.health_records import HealthRecord, is_after
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, node_key
from schemas.step_data import CheckInputs, CheckOutputs
from schemas.topology import HEALTH, NODES
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Retry
from services.saga.participant import Command, StepFailure

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 2.0
NO_DEADLINE_SECONDS: Final = 86_400.0
"""Time limit of a command without a deadline."""
CHECK_CHARS_MAX: Final = 1_000

ACTIONS_BY_SEVERITY: Final[tuple[Action, ...]] = (
    *("none", "restart_app", "inspect", "reset_gpu", "reboot", "replace"),
)
"""Actions of verdicts, the least disruptive first."""

_health = decoder(HealthRecord)
_nodes = decoder(NodeRecord)
_diagnosis: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(Diagnosis)


class DiagnosticStep:
    """Requests diagnostics from agents."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock

    async def check(self, command: Command) -> CheckOutputs:
        """Return what passed, or raise StepFailure with what did not; cancelled at the deadline."""
        inputs = command.inputs_as(CheckInputs)
        subject = subjects.node_command(inputs.pool, inputs.node, "diagnose")
        request = encode(DiagnoseRequest(checks=inputs.checks, level=inputs.level))
        while True:
            found = await self._diagnose(subject, request, self._seconds_left(command.deadline))
            if found is not None and not found.refused:
                passed = _check_outputs(inputs, found)
                await self._refuse_if_unhealthy(inputs)
                return passed
            if found is not None:
                log.info("not tested yet", extra={"node": inputs.node, "reason": found.refused})
            await self._clock.sleep(RETRY_SECONDS)

    async def _refuse_if_unhealthy(self, inputs: CheckInputs) -> None:
        """Fail for faults seen since the remediation, whatever the diagnostics say.

        Retry where NODES has lost the node: it may have got worse.
        """
        if inputs.since is None and not inputs.boot_id:
            return
        key = node_key(inputs.pool, inputs.node)
        found = await self._bus.get(NODES, key)
        if found is None:
            raise Retry(f"NODES lacks {inputs.node}; the pool-manager records it again")
        node: NodeRecord = _nodes.decode(found.value)
        severity = ACTIONS_BY_SEVERITY.index
        unhealthy = node.health == "unhealthy"
        if unhealthy and severity(node.health_action) > severity(inputs.action):
            reason = f"it has got worse, and the health policy demands {node.health_action}"
            raise StepFailure(f"{reason}: {node.health_reason}", error=NOT_ADMITTED)
        entry = await self._bus.get(HEALTH, key)
        record: HealthRecord | None = _health.decode(entry.value) if entry else None
        for note in reversed(record.recent if record else ()):
            if note.result == "unhealthy" and is_after(note, inputs.since, inputs.boot_id):
                what = f"{note.kind} {note.code}" if note.code else note.kind
                raise StepFailure(f"it has {what} again: {note.message}", error=NOT_ADMITTED)

    def _seconds_left(self, deadline: datetime | None) -> float:
        if deadline is None:
            return NO_DEADLINE_SECONDS
        return max((deadline - self._clock.now()).total_seconds(), RETRY_SECONDS)

    async def _diagnose(self, subject: str, request: bytes, seconds: float) -> Diagnosis | None:
        """Request it once; None without a reply, or with one that cannot be read."""
        try:
            reply = await self._bus.request(subject, request, timeout_seconds=seconds)
            found: Diagnosis = _diagnosis.decode(reply.data)
        except BusError as error:
            log.info("no agent answers yet", extra={"subject": subject, "reason": str(error)})
            return None
        except msgspec.DecodeError as error:
            log.warning("unreadable reply", extra={"subject": subject, "reason": str(error)})
            return None
        return found


def _check_outputs(inputs: CheckInputs, found: Diagnosis) -> CheckOutputs:
    details = "; ".join(f"{c.name}: {c.detail}" for c in found.checks if c.ok == found.ok)
    detail = (details or ", ".join(inputs.checks))[:CHECK_CHARS_MAX]
    if not found.ok:
        failed = {each.name for each in found.checks if not each.ok}
        # A tool that fails is a fault of its own; one that cannot run says nothing.
        of_nvml = failed - (set(inputs.checks) - {"boot"}) if "boot" in inputs.checks else set()
        alone = inputs.since is None and not inputs.boot_id
        error = TEST_FAILED if of_nvml and alone else NOT_ADMITTED
        raise StepFailure(f"the diagnostic failed: {detail}", error=error)
    return CheckOutputs(detail=detail)
