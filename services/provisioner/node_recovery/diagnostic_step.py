"""The step `check`: has a node's agent test its host, and goes by what it finds.

The agent may still be starting, or refuse for now (its host is at another test): it is asked again
until the step's deadline. A test that failed is final, and says what was found.
"""

import logging
from datetime import datetime
from typing import Any, Final

import msgspec

from schemas import subjects
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.enums import NOT_ADMITTED, Action
from schemas.health_records import HealthRecord, is_after
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, node_key
from schemas.step_data import CheckInputs, CheckOutputs
from schemas.topology import HEALTH, NODES
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.saga.participant import Command, StepFailure

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS: Final = 2.0
SECONDS_MAX: Final = 86_400.0
"""For a command without a deadline."""
DETAIL_CHARS_MAX: Final = 1_000

ACTIONS_BY_SEVERITY: Final[tuple[Action, ...]] = (
    *("none", "restart_app", "inspect", "reset_gpu", "reboot", "replace"),
)
"""What verdicts call for, the gentlest first."""

_health = decoder(HealthRecord)
_nodes = decoder(NodeRecord)
_diagnosis: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(Diagnosis)


class DiagnosticStep:
    """Asks agents."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        """Ask over `bus`."""
        self._bus = bus
        self._clock = clock

    async def check(self, command: Command) -> CheckOutputs:
        """Return what passed, or raise StepFailure with what did not; cancelled at the deadline."""
        asked = command.inputs_as(CheckInputs)
        subject = subjects.node_command(asked.pool, asked.node, "diagnose")
        request = encode(DiagnoseRequest(checks=asked.checks, level=asked.level))
        while True:
            found = await self._ask(subject, request, self._left(command.deadline))
            if found is not None and not found.refused:
                passed = _passed(asked, found)
                await self._refuse_if_sick_again(asked)
                return passed
            if found is not None:
                log.info("not tested yet", extra={"node": asked.node, "reason": found.refused})
            await self._clock.sleep(ASK_AGAIN_SECONDS)

    async def _refuse_if_sick_again(self, asked: CheckInputs) -> None:
        """What was seen since the node was mended speaks against it, whatever the tests say."""
        if asked.since is None and not asked.boot_id:
            return
        key = node_key(asked.pool, asked.node)
        found = await self._bus.get(NODES, key)
        node: NodeRecord | None = _nodes.decode(found.value) if found else None
        sick = node is not None and node.health == "unhealthy"
        if (
            node
            and sick
            and ACTIONS_BY_SEVERITY.index(node.health_action)
            > ACTIONS_BY_SEVERITY.index(asked.action)
        ):
            reason = f"it is worse by now, and calls for {node.health_action}"
            raise StepFailure(f"{reason}: {node.health_reason}", error=NOT_ADMITTED)
        entry = await self._bus.get(HEALTH, key)
        record: HealthRecord | None = _health.decode(entry.value) if entry else None
        for note in reversed(record.recent if record else ()):
            if note.result == "unhealthy" and is_after(note, asked.since, asked.boot_id):
                what = f"{note.kind} {note.code}" if note.code else note.kind
                raise StepFailure(f"it has {what} again: {note.message}", error=NOT_ADMITTED)

    def _left(self, deadline: datetime | None) -> float:
        if deadline is None:
            return SECONDS_MAX
        return max((deadline - self._clock.now()).total_seconds(), ASK_AGAIN_SECONDS)

    async def _ask(self, subject: str, request: bytes, seconds: float) -> Diagnosis | None:
        """Ask once; None where nobody answers, or not in words that can be read."""
        try:
            reply = await self._bus.request(subject, request, timeout_seconds=seconds)
            found: Diagnosis = _diagnosis.decode(reply.data)
        except BusError as error:
            log.info("no agent answers yet", extra={"subject": subject, "reason": str(error)})
            return None
        except msgspec.DecodeError as error:
            log.warning("not an answer", extra={"subject": subject, "reason": str(error)})
            return None
        return found


def _passed(asked: CheckInputs, found: Diagnosis) -> CheckOutputs:
    told = "; ".join(f"{c.name}: {c.detail}" for c in found.checks if c.ok == found.ok)
    told = (told or ", ".join(asked.checks))[:DETAIL_CHARS_MAX]
    if not found.ok:
        raise StepFailure(f"the diagnostic failed: {told}", error=NOT_ADMITTED)
    return CheckOutputs(detail=told)
