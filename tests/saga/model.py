"""A world in memory in which sagas run: the log is a list, the participants act on sets.

Decisions, folding and tables are the real ones; only the bus and the peers are played. Every
append and every action is a point at which the run can be cut off and begun again from the log.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from schemas.node_records import NodeRecord
from schemas.saga_log_entries import (
    SagaEntry,
    SagaStarted,
    StepFailed,
    StepStarted,
    StepSucceeded,
    UndoFailed,
    UndoStarted,
    UndoSucceeded,
)
from schemas.saga_params import LaunchSpec, SagaParams
from services.saga.definition import Definition
from services.saga.next_entry import Impossible, Waiting, cancel, next_entry, retry
from services.saga.saga_state import SagaState, fold

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
ROUNDS_MAX = 200


class CutOff(Exception):  # noqa: N818 - what happens to the process, not an error of it
    """The process died here."""


@dataclass
class World:
    """Holds what sagas act on, as sets: doing a thing twice is visible only in `performed`."""

    instances: set[str] = field(default_factory=lambda: {"old"})
    cordoned: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    performed: list[str] = field(default_factory=list)
    recovered: set[str] = field(default_factory=set)
    disturbed: list[str] = field(default_factory=list)
    """Nodes that were reset or rebooted with work on them."""
    undrained_terminations: list[str] = field(default_factory=list)

    def act(self, step: str, inputs: dict[str, Any]) -> None:
        """Perform a step."""
        self.performed.append(step)
        node = inputs["node"]
        match step:
            case "cordon" | "reserve":
                self.cordoned.add(node)
            case "uncordon" | "open" | "promote":
                self.cordoned.discard(node)
            case "drain":
                self.drained.add(node)
            case "terminate":
                if node in self.instances and node not in self.drained:
                    self.undrained_terminations.append(node)
                self.instances.discard(node)
            case "provision":
                self.instances.add(node)
            case "reset" | "reboot":
                if node not in self.cordoned or node not in self.drained:
                    self.disturbed.append(node)
                self.recovered.add(node)

    def undo(self, step: str, inputs: dict[str, Any]) -> None:
        """Take a step back, whether or not it was ever performed."""
        self.performed.append(f"undo-{step}")
        node = inputs["node"]
        match step:
            case "cordon":
                self.cordoned.discard(node)
            case "provision":
                self.instances.discard(node)

    def snapshot(self) -> tuple[frozenset[str], ...]:
        """Return what is so now."""
        return tuple(map(frozenset, (self.instances, self.cordoned, self.drained, self.recovered)))


VARIANTS: dict[str, dict[str, Any]] = {
    "terminate_first": {},
    "provision_first": {"order": "provision_first"},
    "launch_ahead": {"order": "launch_ahead"},
    "tested": {"diagnostic": "dcgm-2"},
    "spare": {"spare": True, "diagnostic": "dcgm-2"},
    "promoting": {"spare": True, "promotes": "ready"},
    "restoring": {"restores_service": True},
    "restoring_new_first": {"restores_service": True, "order": "provision_first"},
}
"""What a pool's choices make of a saga."""
KINDS: dict[str, tuple[str, ...]] = {
    "provision_first": ("replace",),
    "launch_ahead": ("replace",),
    "tested": ("replace", "scale-up"),
    "spare": ("replace", "scale-up", "scale-down"),
    "promoting": ("replace",),
    "restoring": ("replace", "reset-gpu", "reboot"),
    "restoring_new_first": ("replace",),
}
"""Variant -> the kinds of saga that it makes a difference to; absent: all."""


def waiting(definition: Definition, given: SagaParams) -> list[str]:
    """Steps without a participant: they wait for a node."""
    return [step.name for step in definition.steps(given) if step.waits is not None]


def params(definition: Definition, variant: str = "terminate_first") -> SagaParams:
    """Parameters that fit any saga."""
    brings = definition.kind in ("replace", "scale-up")
    return SagaParams(
        pool="training",
        node="" if definition.kind == "scale-up" else "old",
        new_node="new" if brings else "",
        boot_id="b1",
        launch=LaunchSpec(fleet="f", provider="p", instance_type="t") if brings else None,
        **VARIANTS[variant],
    )


@dataclass
class Run:
    """One saga, driven to its end."""

    definition: Definition
    params: SagaParams
    world: World = field(default_factory=World)
    twice: bool = False
    """Perform every action twice, as after a redelivery."""
    fail: str = ""
    """The step whose action fails."""
    fail_undo: str = ""
    cut_at: int = -1
    """The append or action before which the process dies, once."""
    cancel_at: int = -1
    """The append or action before which an operator cancels, once."""
    refusal: str = ""
    """Why it could not be cancelled."""
    log: list[SagaEntry] = field(default_factory=list)
    points: int = 0
    now: datetime = EPOCH

    def to_end(self) -> SagaState:
        """Run, surviving the cut by reading the log again, and return the last state."""
        while True:
            try:
                return self._drive()
            except CutOff:
                continue

    def _point(self) -> None:
        self.points += 1
        if self.points - 1 == self.cut_at:
            raise CutOff
        if self.points - 1 == self.cancel_at:
            self._cancel()

    def _cancel(self) -> None:
        """Append an operator's entry; the coordinator, about to append, then reads again."""
        state = self.state()
        if state is None:
            self.refusal = "there is no such saga"
            return
        entry = cancel(self.definition, state, self.now, reason="cancelled", cause="request-1")
        if isinstance(entry, Impossible):
            self.refusal = entry.reason
            return
        self.log.append(entry)
        raise CutOff

    def repair_and_retry(self) -> SagaState:
        """Repair what failed, retry the stuck saga, and run it to its end."""
        state = self.state()
        assert state is not None
        self.fail = self.fail_undo = ""
        entry = retry(state, self.now, reason="repaired", cause="request-2")
        assert not isinstance(entry, Impossible)
        self._append(entry)
        return self.to_end()

    def _append(self, entry: SagaEntry) -> None:
        self._point()
        self.log.append(entry)

    def state(self) -> SagaState | None:
        """Return the fold over the log."""
        state: SagaState | None = None
        for i, entry in enumerate(self.log, 1):
            state = fold(state, entry, i, {})
        return state

    def _drive(self) -> SagaState:
        for _ in range(ROUNDS_MAX):
            self.now += timedelta(seconds=1)
            state = self.state()
            if state is None:
                self._append(
                    SagaStarted(
                        id="s.started",
                        time=self.now,
                        saga="s",
                        kind=self.definition.kind,
                        params=self.params,
                    )
                )
                continue
            entry = next_entry(self.definition, state, self._node(), self.now)
            if entry is None:
                return state
            if isinstance(entry, Waiting):
                self._take_part(entry.step)
            else:
                self._append(entry)
        raise AssertionError(f"does not end: {[type(each).__name__ for each in self.log]}")

    def _node(self) -> NodeRecord | None:
        if not self.params.new_node:
            boot = self.params.boot_id if self.fail == "return" else "b2"
            return NodeRecord(pool="training", node="old", boot_id=boot)
        if "new" not in self.world.instances:
            return None
        failing = self.fail == "admit"
        silent = self.fail == "register"
        return NodeRecord(
            pool="training",
            node="new",
            registered_at=None if silent else EPOCH,
            boot_id="b",
            boot_checked=not failing,
            boot_checked_id="b",
        )

    def _take_part(self, step: str) -> None:
        """Perform what the log's last command about a step says."""
        commands = [each for each in self.log if isinstance(each, StepStarted | UndoStarted)]
        command = [each for each in commands if each.step == step][-1]
        names = {"time": self.now, "saga": "s", "step": step}
        if isinstance(command, StepStarted):
            if self._unwinding():
                self._append(StepFailed(id="x", reason="stopped", **names))
                return
            if step in waiting(self.definition, self.params):
                assert command.deadline is not None
                self.now = command.deadline
                return
            self._do(self.world.act, step, command.inputs)
            failed = step == self.fail
            self._append(
                StepFailed(id="x", reason="made to fail", **names)
                if failed
                else StepSucceeded(id="x", **names)
            )
        else:
            assert isinstance(command, UndoStarted)
            self._do(self.world.undo, step, command.inputs)
            failed = step == self.fail_undo
            self._append(
                UndoFailed(id="x", reason="made to fail", **names)
                if failed
                else UndoSucceeded(id="x", **names)
            )

    def _unwinding(self) -> bool:
        state = self.state()
        return state is not None and state.status == "unwinding"

    def _do(self, action: Any, step: str, inputs: dict[str, Any]) -> None:
        self._point()
        action(step, inputs)
        if self.twice:
            action(step, inputs)
