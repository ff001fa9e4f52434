"""Saga logs recorded from runs: today's code reads each as it was meant, and would write it again.

`python -m tests.golden.capture` records them, one for each kind of saga and way to end.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from schemas.saga_log_entries import (
    SagaEntry,
    SagaRetried,
    SagaStarted,
    SagaUnwinding,
    StepEntry,
    StepFailed,
    StepSucceeded,
    UndoFailed,
    UndoSucceeded,
    saga_codec,
)
from services.bus.port import Stored
from services.saga.definitions import DEFINITIONS
from services.saga.next_entry import next_entry
from services.saga.saga_log import fold_stored
from services.saga.saga_state import SagaState

LOGS = sorted((Path(__file__).parents[1] / "golden" / "saga_logs").glob("*.json"))
WRITTEN_BY_OTHERS = (
    SagaStarted,
    SagaRetried,
    StepSucceeded,
    StepFailed,
    UndoSucceeded,
    UndoFailed,
)
"""By operators and participants; the coordinator writes all other entries."""
UNRECORDED = {"promote", "quarantine", "recheck", "cordon-gpus"}
"""No captured run has this kind."""


def read_log(path: Path) -> tuple[dict[str, Any], list[Stored]]:
    """The recorded end state, and the entries as the server delivered them."""
    recorded = json.loads(path.read_bytes())
    entries = [
        Stored(
            each["subject"],
            json.dumps(each["data"]).encode(),
            each["sequence"],
            datetime.fromisoformat(each["time"]),
            each["headers"],
        )
        for each in recorded["entries"]
    ]
    return recorded["end"], entries


def test_every_kind_of_saga_has_a_log_that_succeeded() -> None:
    """A new kind needs a recorded log."""
    assert {f"{kind}-done" for kind in DEFINITIONS.keys() - UNRECORDED} <= {
        path.stem for path in LOGS
    }
    assert any(path.stem.endswith("-unwound") for path in LOGS)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_recorded_log_leads_to_its_recorded_end(path: Path) -> None:
    """No entry is skipped, and status, steps and outputs are what they were."""
    end, entries = read_log(path)
    state: SagaState | None = None
    for stored in entries:
        state = fold_stored(state, stored)
    assert state is not None
    assert state.skipped == frozenset()
    assert end == {
        "saga": state.saga,
        "kind": state.kind,
        "status": state.status,
        "reason": state.reason,
        "failed_step": state.failed_step,
        "cancelled": state.cancelled,
        "steps": {name: step.status for name, step in state.steps.items()},
        "outputs": json.loads(json.dumps({k: dict(v) for k, v in state.outputs.items()})),
    }


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_the_coordinator_would_append_the_recorded_entries_again(path: Path) -> None:
    """The entry after each part of a log is the recorded one, where the coordinator wrote it.

    Not compared: the end of a wait for a node, which the node's record decides, and cancelling.
    """
    _, entries = read_log(path)
    state: SagaState | None = None
    compared = 0
    for stored in entries:
        entry = saga_codec.decode(stored.data)
        assert isinstance(entry, SagaEntry)
        cancelled = isinstance(entry, SagaUnwinding) and (state is None or not state.failed_step)
        if state is not None and not isinstance(entry, WRITTEN_BY_OTHERS) and not cancelled:
            definition = DEFINITIONS[state.kind]
            found = next_entry(definition, state, None, entry.time)
            assert type(found) is type(entry), stored.subject
            assert isinstance(found, SagaEntry)
            assert found.id == entry.id
            if isinstance(entry, StepEntry) and isinstance(found, StepEntry):
                assert found.step == entry.step
            compared += 1
        state = fold_stored(state, stored)
    assert compared > 0
