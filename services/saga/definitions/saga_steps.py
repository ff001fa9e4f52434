"""The steps that sagas are put together from: what each is given, and how long it may take.

Outputs travel by step name and nothing else is shared. Deadlines come from the pool's spec as it
was when the saga began.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

import msgspec

from schemas.enums import DENIED_HARDWARE, MISPLACED, NOT_ADMITTED
from schemas.fault_signature import OFF_THE_BUS, SILENCE
from schemas.node_records import NodeRecord
from schemas.saga_params import SagaParams
from schemas.step_data import (
    BootstrapInputs,
    CheckInputs,
    GpuInputs,
    NodeInputs,
    ProvisionInputs,
    RebootInputs,
    ResetInputs,
    TerminateInputs,
)
from services.saga.definition import Met, Outputs, Step, Unmeetable

CORDON_SECONDS: Final = 300.0
"""A workload system that is away this long is a matter for a person."""
QUARANTINE_SECONDS: Final = 60.0
HASTY_CORDON_SECONDS: Final = 15.0
"""Of a node on which no work is left, or that the cloud takes soon: the saga then goes on without
the workload system."""
IMMEDIATE_SECONDS: Final = 15.0
"""How long the order to drain may take where the work is not waited for."""
VACATE_SECONDS: Final = 5.0
"""The same where a new node is to be launched without delay."""
PROMOTE_SECONDS: Final = 60.0
"""The workload system has just cordoned the node whose place the spare takes."""
TERMINATE_SECONDS: Final = 86_400.0
"""The provisioner waits minutes, and leaves the rest to its sweep: only without one is it a day."""

RESET_SECONDS: Final = 900.0
"""To wait for the last process to leave the GPUs, to reset one, and then all where one alone
cannot be."""
REBOOT_SECONDS: Final = 600.0
"""To command the agent; or to be sure that it does not answer, and to ask the provider."""

XID: Final = "xid-"
"""Fault signatures of GPUs' own errors begin with this."""
WORK_IS_DEAD: Final = OFF_THE_BUS | {SILENCE}
"""Fault signatures of nodes whose work can no longer save anything."""


def _node(params: SagaParams, _: Outputs) -> NodeInputs:
    return NodeInputs(pool=params.pool, node=params.node, reason=params.reason)


def _gpus(params: SagaParams, _: Outputs) -> GpuInputs:
    return GpuInputs(
        pool=params.pool, node=params.node, reason=params.reason, gpus=params.faulty_gpus
    )


def _drain(params: SagaParams, outputs: Outputs) -> NodeInputs:
    return NodeInputs(
        pool=params.pool,
        node=params.node,
        reason=params.reason,
        wait=params.drain != "immediate",
        workload_notified=bool(outputs.get("vacate", {}).get("workload_notified")),
        checkpoint_seconds=checkpoint_seconds(params),
    )


def checkpoint_seconds(params: SagaParams) -> float:
    """Return the seconds in which work may leave after a request for a checkpoint; 0: none asked.

    Work that is dead already, or that the cloud takes, is not asked; and the drain ends no later.
    """
    dead = params.gone or params.fault_signature in WORK_IS_DEAD
    if dead or params.drain == "immediate" or params.order == "launch_ahead":
        return 0.0
    if params.drain == "wait":
        return params.checkpoint_seconds
    return min(params.checkpoint_seconds, params.drain_timeout_seconds)


def _vacate(params: SagaParams, _: Outputs) -> NodeInputs:
    return NodeInputs(
        pool=params.pool,
        node=params.node,
        reason=params.reason,
        wait=False,
        drain_seconds=0.0 if params.drain == "immediate" else _drain_seconds(params),
    )


def _drain_seconds(params: SagaParams) -> float | None:
    match params.drain:
        case "deadline":
            return params.drain_timeout_seconds
        case "immediate":
            return IMMEDIATE_SECONDS
        case "wait":
            return None


def _drain_overdue(params: SagaParams) -> float | None:
    return params.drain_timeout_seconds if params.drain == "wait" else None


def _terminate(params: SagaParams, _: Outputs) -> TerminateInputs:
    of_gpu = params.action == "replace" and params.fault_signature.startswith(XID)
    return TerminateInputs(
        pool=params.pool,
        node=params.node,
        reason=params.reason,
        fault=params.fault_signature if of_gpu else "",
    )


def _provision(params: SagaParams, _: Outputs) -> ProvisionInputs:
    assert params.launch is not None
    return ProvisionInputs(
        pool=params.pool,
        node=params.new_node,
        launch=params.launch,
        interrupted=params.node if params.interrupted else "",
        timeout_seconds=params.launch_timeout_seconds,
    )


def _bootstrap(params: SagaParams, _: Outputs) -> BootstrapInputs:
    return BootstrapInputs(pool=params.pool, node=params.new_node)


def _new_node(params: SagaParams, _: Outputs) -> NodeInputs:
    return NodeInputs(pool=params.pool, node=params.new_node)


def _reset(params: SagaParams, _: Outputs) -> ResetInputs:
    return ResetInputs(pool=params.pool, node=params.node, gpus=params.gpus)


def _reboot(params: SagaParams, _: Outputs) -> RebootInputs:
    # No warm reboot brings such a GPU back: its slot must lose power.
    cold = params.fault_signature in OFF_THE_BUS
    return RebootInputs(pool=params.pool, node=params.node, boot_id=params.boot_id, cold=cold)


def _check(params: SagaParams, outputs: Outputs) -> CheckInputs:
    checks, level = diagnostic(params.diagnostic)
    if not params.new_node and "boot" not in checks:
        # A node that comes has its boot checks from its agent by itself.
        checks = ("boot", *checks)
    return CheckInputs(
        pool=params.pool,
        node=params.new_node or params.node,
        checks=checks,
        level=level,
        since=gpus_reset_at(outputs),
        boot_id=new_boot_id(outputs),
        action=params.action,
    )


def gpus_reset_at(outputs: Outputs) -> datetime | None:
    """When the node's GPUs were reset, by its own clock."""
    at = outputs.get("reset", {}).get("at")
    return msgspec.convert(at, datetime | None)


def new_boot_id(outputs: Outputs) -> str:
    """The boot that a reboot has begun; empty where nothing was rebooted."""
    return str(outputs.get("return", {}).get("boot_id", ""))


def diagnostic(name: str) -> tuple[tuple[str, ...], int]:
    """Return the tools that the agent runs, and the level: `dcgm-3` is `dcgm` at level 3."""
    tool, _, level = name.partition("-")
    if tool == "dcgm" and level:
        return (tool,), int(level)
    return (name or "boot",), 1


def _reserve(params: SagaParams, _: Outputs) -> NodeInputs:
    reason = "a spare, kept in reserve" if params.spare else "it is tested before it is admitted"
    return NodeInputs(pool=params.pool, node=params.new_node, reason=reason)


def _promote(params: SagaParams, _: Outputs) -> NodeInputs:
    return NodeInputs(pool=params.pool, node=params.promotes, reason=params.reason)


def _launch_seconds(params: SagaParams) -> float:
    return params.launch_timeout_seconds


def registered(_: SagaParams, node: NodeRecord | None) -> Met | Unmeetable | None:
    """Return that the new node's agent has registered; None: not yet."""
    if node is None or node.registered_at is None:
        return None
    if node.denied_reason:
        return Unmeetable(node.denied_reason, DENIED_HARDWARE)
    return Met({"hostname": node.hostname, "gpu_count": len(node.gpus)})


def admitted(params: SagaParams, node: NodeRecord | None) -> Met | Unmeetable | None:
    """Return that the new node may take work: its GPUs are all there, its boot check passed."""
    if node is None or node.boot_checked is None or node.boot_checked_id != node.boot_id:
        return None
    if node.denied_reason:
        return Unmeetable(node.denied_reason, DENIED_HARDWARE)
    # A driver that is not loaded says nothing about how many GPUs there are, so its check is first.
    if not node.boot_checked:
        return Unmeetable(f"boot check failed: {node.boot_detail}", NOT_ADMITTED)
    promised = params.launch.gpu_count if params.launch else 0
    if promised and len(node.gpus) != promised:
        return Unmeetable(f"{len(node.gpus)} GPUs where {promised} were promised", NOT_ADMITTED)
    if node.health == "unhealthy":
        return Unmeetable(f"unhealthy on arrival: {node.health_reason}", NOT_ADMITTED)
    if node.misplaced_reason:
        return Unmeetable(node.misplaced_reason, MISPLACED)
    if node.misplaced_reason is None:
        return None
    return Met({})


def returned(params: SagaParams, node: NodeRecord | None) -> Met | Unmeetable | None:
    """Return that the node's agent reports another boot than the one that was to end."""
    if node is None or node.lost or node.boot_id in ("", params.boot_id):
        return None
    return Met({"boot_id": node.boot_id, "gpu_count": len(node.gpus)})


CORDON: Final = Step(name="cordon", inputs=_node, deadline_seconds=lambda _: CORDON_SECONDS)
QUARANTINE_CORDON: Final = Step(
    name="cordon", inputs=_node, deadline_seconds=lambda _: QUARANTINE_SECONDS
)
"""Its deadline is short, because it keeps the node's repair waiting; it is repeated."""
CORDON_UNDONE: Final = Step(
    name="cordon", inputs=_node, deadline_seconds=lambda _: CORDON_SECONDS, undo=True
)
CORDON_HASTY: Final = replace(
    CORDON, deadline_seconds=lambda _: HASTY_CORDON_SECONDS, on_deadline="proceed"
)
CORDON_HASTY_UNDONE: Final = replace(CORDON_HASTY, undo=True)
UNCORDON: Final = Step(
    name="uncordon", inputs=_node, deadline_seconds=lambda _: CORDON_SECONDS, irrevocable=True
)
CORDON_GPUS: Final = Step(
    name="cordon-gpus",
    inputs=_gpus,
    deadline_seconds=lambda _: QUARANTINE_SECONDS,
    irrevocable=True,
)
"""Its deadline is short, because work gets onto a faulty GPU until the node is cordoned instead."""


def cordon_undone(params: SagaParams) -> Step:
    """Nothing new on the node; unwinding takes that back, unless it was cordoned before."""
    return CORDON if params.was_cordoned else CORDON_UNDONE


def _needs_no_workload_system(params: SagaParams) -> bool:
    """Whether a node's machine is gone, and its successor's launch orders nothing there either."""
    return params.gone and not (params.promotes or params.spare or params.diagnostic)


def cordon(params: SagaParams) -> Step:
    """Nothing new on the node; given back by unwinding where it was well before."""
    if params.dead or params.order == "launch_ahead":
        hasty = CORDON_HASTY_UNDONE if params.restores_service else CORDON_HASTY
        return replace(hasty, on_failure="proceed") if _needs_no_workload_system(params) else hasty
    return CORDON_UNDONE if params.restores_service else CORDON


VACATE: Final = Step(
    name="vacate",
    inputs=_vacate,
    deadline_seconds=lambda _: VACATE_SECONDS,
    on_deadline="proceed",
)
"""Asks the work to leave, so that it does while the new node is launched."""
DRAIN: Final = Step(
    name="drain",
    inputs=_drain,
    deadline_seconds=_drain_seconds,
    overdue_seconds=_drain_overdue,
    on_deadline="proceed",
    cut_short=True,
)


def drain(params: SagaParams) -> Step:
    """Lets the work of a node that is replaced finish."""
    return replace(DRAIN, on_failure="proceed") if _needs_no_workload_system(params) else DRAIN


TERMINATE: Final = Step(
    name="terminate",
    inputs=_terminate,
    deadline_seconds=lambda _: TERMINATE_SECONDS,
    on_deadline="proceed",
    irrevocable=True,
)
PROVISION: Final = Step(
    name="provision",
    inputs=_provision,
    deadline_seconds=_launch_seconds,
    undo=True,
    superseded=True,
)
BOOTSTRAP: Final = Step(
    name="bootstrap", inputs=_bootstrap, deadline_seconds=_launch_seconds, superseded=True
)
REGISTER: Final = Step(
    name="register", inputs=_new_node, deadline_seconds=_launch_seconds, waits=registered
)
ADMIT: Final = Step(
    name="admit",
    inputs=_new_node,
    deadline_seconds=_launch_seconds,
    waits=admitted,
    pivot=True,
)
RESET: Final = Step(
    name="reset",
    inputs=_reset,
    deadline_seconds=lambda _: RESET_SECONDS,
    irrevocable=True,
)
REBOOT: Final = Step(
    name="reboot",
    inputs=_reboot,
    deadline_seconds=lambda _: REBOOT_SECONDS,
    irrevocable=True,
)
RETURN: Final = Step(name="return", inputs=_node, deadline_seconds=_launch_seconds, waits=returned)
RESERVE: Final = Step(name="reserve", inputs=_reserve, deadline_seconds=_launch_seconds)
"""Before anything is placed on the new node; undone with its instance. The workload system may
come to know the node only now, so it is asked for as long as a launch may take."""
CHECK: Final = Step(
    name="check",
    inputs=_check,
    deadline_seconds=lambda params: params.diagnostic_timeout_seconds,
    superseded=True,
)
OPEN: Final = Step(name="open", inputs=_new_node, deadline_seconds=_launch_seconds)


PROMOTE: Final = Step(
    name="promote",
    inputs=_promote,
    deadline_seconds=lambda _: PROMOTE_SECONDS,
    on_deadline="proceed",
)
"""A spare takes a node's place. Where that cannot be, the replacement goes on without it: the pool
is then one short, and is filled like any other gap. It is not undone: there may be work there."""
PROMOTE_ALONE: Final = Step(
    name="promote", inputs=_promote, deadline_seconds=lambda _: CORDON_SECONDS, irrevocable=True
)


def promoting(params: SagaParams) -> tuple[Step, ...]:
    """A spare into service, where one takes the node's place."""
    return (PROMOTE,) if params.promotes else ()


def launch(params: SagaParams) -> tuple[Step, ...]:
    """Return the steps up to a node in service; with a diagnostic it gets work once that passes.

    A spare has none at all: it is cordoned before it is admitted.
    """
    before = (PROVISION, BOOTSTRAP, REGISTER)
    if params.spare:
        return (*before, RESERVE, *((CHECK,) if params.diagnostic else ()), ADMIT)
    return (*before, *((RESERVE, CHECK, OPEN) if params.diagnostic else ()), ADMIT)
