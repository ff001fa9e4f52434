"""Declares what a node's agent says of conditions: states that hold for as long as they are seen.

A begin is a `Fault` with the condition's name, an end is a `ConditionEnded`, and every sample lists
what holds. All three carry the boot and the agent's counter, which only grows, so that of two
statements that pass each other the newer one is known.
"""

from datetime import UTC, datetime
from typing import Final

import msgspec

from schemas.enums import FaultKind
from schemas.gpu_samples import Metric
from schemas.time_text import utc_text
from schemas.value_limits import Float, Int, Name

HELD_MAX: Final = 128
"""Entries of a list."""
LIST_BYTES_MAX: Final = 4_096
"""Of a list's entries together; those beyond are counted."""
MESSAGE_CHARS_MAX: Final = 160

Reading = Metric


class HeldCondition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A condition that holds, or that cannot be read."""

    name: Name
    gpu: Int = -1
    """-1: the whole node."""
    since: Float
    """Epoch seconds, by the node's clock, at which it was first seen."""
    counter: Int = 0
    """The agent's counter at its begin."""
    kind: FaultKind = "probe_failed"
    code: Int = 0
    subcode: str = ""
    unknown: bool = False
    """It cannot be read since then: neither that it holds nor that it does not is known."""
    severe: bool = False
    """The agent takes it for a reason to give the node no work; the health policy decides."""
    message: str = ""
    metrics: dict[str, Reading] = {}
    """Values at its begin, for a health policy."""


class ConditionList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that holds on a node, as its agent sees it."""

    boot_id: Name
    counter: Int
    held: tuple[HeldCondition, ...] = ()
    left_out: Int = 0
    """Entries that had no room."""


class ConditionView(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a state of a node that holds for as long as its agent sees it."""

    name: str
    gpu_index: Int = -1
    since: str = ""
    unknown: bool = False
    """It cannot be read since then."""
    message: str = ""


def condition_views(listed: ConditionList | None) -> tuple[ConditionView, ...]:
    """Return a list as people see it."""
    return tuple(
        ConditionView(
            name=each.name,
            gpu_index=each.gpu,
            since=utc_text(datetime.fromtimestamp(each.since, UTC)),
            unknown=each.unknown,
            message=each.message,
        )
        for each in (listed.held if listed is not None else ())
    )


def unreported_view(since: str) -> ConditionView:
    """Return what people see of a node whose agent has reported no conditions since then."""
    message = (
        "the agent has reported none (one of an earlier release does not): faults wear off by the "
        "policy's times"
    )
    return ConditionView(name="conditions", since=since, unknown=True, message=message)


def begin_id(pool: str, node: str, boot_id: str, held: HeldCondition) -> str:
    """Return the ID of the fault with which a condition began."""
    boot = boot_id.replace("-", "")[:8]
    return f"{pool}.{node}.{boot}.condition.{held.name}.{held.gpu}.{held.counter}"


def bounded(
    boot_id: str, counter: int, held: tuple[HeldCondition, ...], bytes_max: int = LIST_BYTES_MAX
) -> ConditionList:
    """Return a list within its bounds: what is severe first, what is unknown last."""
    kept: list[HeldCondition] = []
    for each in sorted(held, key=lambda each: (each.unknown, not each.severe, each.since)):
        bytes_max -= len(msgspec.json.encode(each)) + 1
        if bytes_max < 0 or len(kept) == HELD_MAX:
            break
        kept.append(each)
    left_out = len(held) - len(kept)
    return ConditionList(boot_id=boot_id, counter=counter, held=tuple(kept), left_out=left_out)
