"""Shows how a condition of an agent is declared: for `navarch policy explain --condition`."""

from difflib import get_close_matches
from typing import Final

import msgspec

from agent.conditions.declared import BY_NAME, READERS, Declared
from schemas.duration import format_duration
from schemas.node_events import Fault
from services.primitives.errors import NavarchError

AT_ONCE: Final = "at once"


class ConditionDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """Declares a condition as operators and programs see it."""

    condition: str
    meaning: str
    read: str
    """By what, and at which interval."""
    level: str
    """`gpu` or `host`."""
    kind: str
    code: int = 0
    subcode: str = ""
    begins: str
    """How long it is seen before it holds."""
    ends: str
    """How long it is not seen before it is over."""
    severity: str
    """By the agent, where the fleet's verdict is not known."""
    remedy: str


def declared(name: str) -> Declared:
    """Return a condition's row; NavarchError where none has the name."""
    if name in BY_NAME:
        return BY_NAME[name]
    near = get_close_matches(name, BY_NAME, 1)
    meant = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(BY_NAME))}"
    raise NavarchError(f"{name!r} is no condition{meant}")


def declaration(row: Declared) -> ConditionDeclaration:
    """Return how a condition is declared."""
    return ConditionDeclaration(
        condition=row.name,
        meaning=row.words,
        read=READERS[row.reader],
        level=row.scope,
        kind=row.kind,
        code=row.code,
        subcode=row.subcode,
        begins=_after(row.begins_seconds),
        ends=_after(row.ends_seconds),
        severity="unhealthy" if row.severe else "degraded",
        remedy=row.remedy,
    )


def declaration_lines(found: ConditionDeclaration) -> list[tuple[str, str]]:
    """Return label and text of each line."""
    kind = " ".join(str(each) for each in (found.kind, found.code, found.subcode) if each)
    return [
        ("condition", f"{found.condition}: {found.meaning}"),
        ("read", found.read),
        ("level", "each GPU" if found.level == "gpu" else "the host"),
        ("kind", kind),
        ("holds", f"{found.begins} when it is seen; over {found.ends} when it is not"),
        ("severity", f"{found.severity}, by the agent where the fleet's verdict is not known"),
        ("remedy", found.remedy),
    ]


def begin_of(row: Declared, fault: Fault) -> Fault:
    """Return an example as the begin of a condition."""
    return msgspec.structs.replace(
        fault,
        condition=row.name,
        subcode=fault.subcode or row.subcode or row.example_word,
        metrics={**row.example_metrics, **fault.metrics},
    )


def _after(seconds: float) -> str:
    return f"after {format_duration(seconds)}" if seconds else AT_ONCE
