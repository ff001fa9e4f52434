"""Describes what a sweep does or would do, and why, including deferred actions. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from schemas.sweeps import SweepLine, SweepVerb
from services.provisioner.removal.proposals import GATED, Held, unnamed_remedy
from services.provisioner.removal.removal_orders import orphan_remedy
from services.provisioner.removal.sweep_actions import REMOVALS, SweepAction, SweepKind

OBSERVES: Final = "its pool is in observe mode (`mode: observe`)"
UNCLEAR: Final = (
    "an operator finds out which machine serves, and ends the other one at its provider"
)
TOO_MANY: Final = "one sweep removes no more unexpected instances; the next one continues"
KINDS: Final[Mapping[SweepKind, tuple[SweepVerb, str]]] = {
    "remove-unexpected": ("terminate", "proof"),
    "remove-surplus": ("terminate", "proof"),
    "remove-late": ("terminate", "launch"),
    "retry-surplus": ("terminate", "as ordered"),
    "retry-removal": ("terminate", "as ordered"),
    "confirm-removal": ("forget", ""),
    "end-launch": ("forget", "launch"),
    "adopt-instance": ("adopt", ""),
    "restore-record": ("adopt", ""),
    "adopt-joined": ("adopt", ""),
    "retire-joined": ("forget", ""),
    "correct-id": ("note", ""),
    "note-unclear": ("note", ""),
    "doubt-id": ("note", ""),
    "mark-down": ("note", ""),
    "mark-up": ("note", ""),
    "mark-listed": ("note", ""),
    "mark-unlisted": ("note", ""),
    "keep-orphan": ("orphan", "operator"),
    "keep-unnamed": ("orphan", "operator"),
    "orphan-departed": ("orphan", ""),
    "adopt-orphan": ("adopt", ""),
    "terminate-orphan": ("terminate", "operator"),
    "forget-instance": ("forget", ""),
}
"""What is done, and by whose order what is terminated goes, or is sought to go."""


def report(
    actions: Sequence[SweepAction],
    due: Sequence[SweepAction],
    observes: Callable[[str], bool],
    held: Mapping[tuple[str, str], Held],
    outcomes: Sequence[str] = (),
) -> tuple[SweepLine, ...]:
    """Return a line for each action that is due, waits or is held back, in the sweep's order."""
    results = zip(due, outcomes or [""] * len(due), strict=True)
    outcome_of = {id(action): outcome for action, outcome in results}
    return tuple(
        _line(
            each,
            _held_back(each, observes, due=id(each) in outcome_of),
            held.get((each.provider, each.instance.provider_id)),
            outcome_of.get(id(each), ""),
        )
        for each in actions
    )


def _held_back(action: SweepAction, observes: Callable[[str], bool], *, due: bool) -> str:
    """Why an action is not performed; empty: it is, or its grace is not over."""
    if action.kind == "keep-orphan":
        return orphan_remedy(action.instance.name)
    if action.kind == "keep-unnamed" and not action.by_operator:
        return unnamed_remedy(action)
    if action.waits_seconds:
        return ""
    if action.kind == "note-unclear":
        return UNCLEAR
    if action.kind in REMOVALS and observes(action.instance.pool):
        return OBSERVES
    return "" if due else TOO_MANY


def _line(action: SweepAction, held_back: str, held: Held | None, outcome: str) -> SweepLine:
    held = held if action.kind in GATED and not action.by_operator else None
    if held is not None and (not held_back or action.kind in REMOVALS):
        held_back = f"{held.gate}: {held.reason}"
    return SweepLine(
        verb=KINDS[action.kind][0],
        pool=action.instance.pool,
        instance=action.instance.name,
        provider=action.provider,
        provider_id=action.instance.provider_id,
        reason=action.why,
        waits_seconds=action.waits_seconds,
        held_back=held_back,
        outcome="" if held_back else outcome,
        dollars_per_hour=action.instance.dollars_per_hour,
        authority="operator" if action.by_operator else KINDS[action.kind][1],
        gate=held.gate if held is not None else "",
        since=held.since if held is not None else None,
    )
