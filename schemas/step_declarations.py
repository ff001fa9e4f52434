"""Declares each step of sagas: who performs it, what operators read while it waits, what is final.

Inputs, deadlines and what a failure means are in `services.saga.definitions.saga_steps`.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from schemas import subjects

Performer = Literal["notifier", "provisioner", ""]


class StepSpec(NamedTuple):
    """Describes a step."""

    performer: Performer
    """The service that performs it; empty: the saga waits for the node itself."""
    waits: str
    """What it waits for: `{node}`, `{new_node}`, or the `{checked}` one."""
    undo: str = ""
    """What taking it back waits for, where a service does that."""
    irreversible: bool = False
    """It is performed only after the whole log was read: that must allow it."""


STEPS: Final[Mapping[str, StepSpec]] = {
    "provision": StepSpec(
        "provisioner",
        "the provider to bring up {new_node}",
        undo="the provider to confirm that {new_node} is gone",
    ),
    "bootstrap": StepSpec("provisioner", "the agent to be installed on {new_node}"),
    "terminate": StepSpec(
        "provisioner", "the provider to confirm that {node} is gone", irreversible=True
    ),
    "reset": StepSpec("provisioner", "the agent on {node} to reset its GPUs", irreversible=True),
    "reboot": StepSpec(
        "provisioner", "the agent on {node}, or its provider, to reboot it", irreversible=True
    ),
    "check": StepSpec("provisioner", "the agent on {checked} to run the diagnostic"),
    "cordon": StepSpec(
        "notifier",
        "the notifier to cordon {node} at the workload system",
        undo="the notifier to uncordon {node} at the workload system",
    ),
    "uncordon": StepSpec("notifier", "the notifier to uncordon {node} at the workload system"),
    "cordon-gpus": StepSpec(
        "notifier", "the notifier to keep new work off GPUs of {node} at the workload system"
    ),
    "reserve": StepSpec(
        "notifier", "the notifier to cordon {new_node} at the workload system before it is tested"
    ),
    "open": StepSpec("notifier", "the notifier to uncordon {new_node} at the workload system"),
    "promote": StepSpec("notifier", "the notifier to uncordon the spare at the workload system"),
    "drain": StepSpec("notifier", "the work on {node} to leave"),
    "vacate": StepSpec("notifier", "the notifier to drain {node} at the workload system"),
    "register": StepSpec("", "the agent on {new_node} to register"),
    "admit": StepSpec("", "{new_node} to pass its checks"),
    "return": StepSpec("", "the agent on {node} to register after the reboot"),
}
"""Name of a step -> what is said of it."""
IRREVERSIBLE_STEPS: Final = frozenset(name for name, each in STEPS.items() if each.irreversible)


def waits_for(step: str, node: str, new_node: str, *, undone: bool = False) -> str:
    """Return what a step waits for, or what taking it back does; also of a newer release's step."""
    known = STEPS.get(step)
    words = known and (known.undo if undone else known.waits)
    words = words or ("{step} to be undone" if undone else "{step} to complete")
    return words.format(step=step, node=node, new_node=new_node, checked=new_node or node)


def step_filters(performer: Performer) -> tuple[str, ...]:
    """Return the subjects of the entries that have a service do or undo its steps."""
    return tuple(
        subjects.saga_step_wildcard(name, status)
        for name, each in STEPS.items()
        if each.performer == performer
        for status in ("started", *(("undo-started",) if each.undo else ()))
    )
