"""The invariants know which nodes a saga is about, where its log is set back."""

from datetime import UTC, datetime

import pytest

from schemas.messages import encode
from schemas.saga_log_entries import SagaDone, SagaEntry, SagaStarted, StepSucceeded
from schemas.saga_params import SagaParams
from services.bus.port import Stored
from services.simulator.engine.tracked_sagas import TrackedSagas

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SAGA = "replace-training-1-1"
BEGUN = SagaStarted(
    id=f"{SAGA}.started",
    time=NOW,
    saga=SAGA,
    kind="replace",
    params=SagaParams(pool="training", node="training-1", new_node="training-2", promotes="spare"),
)
PROMOTED = StepSucceeded(
    id=f"{SAGA}.promote.succeeded", time=NOW, saga=SAGA, step="promote", outputs={}
)
DONE = SagaDone(id=f"{SAGA}.done", time=NOW, saga=SAGA)


@pytest.mark.parametrize(("kept", "busy"), [((BEGUN,), True), ((BEGUN, PROMOTED), False)])
@pytest.mark.parametrize("ended", [False, True])
def test_a_promoted_spare_is_free_also_after_a_set_back(
    kept: tuple[SagaEntry, ...], busy: bool, ended: bool
) -> None:
    """The store is set back to these entries; the spare's promotion is among them or lost."""
    sagas = TrackedSagas()
    sagas.begin(BEGUN)
    sagas.promote(SAGA)
    assert not sagas.about["spare"]
    if ended:
        sagas.end(DONE)
    sagas.set_back(map(stored, kept), recorded=True)
    sagas.restored()
    assert bool(sagas.about.get("spare")) is busy
    assert list(sagas.about["training-1"]) == [SAGA]


def stored(entry: SagaEntry) -> Stored:
    """Return the entry as it is stored in its log."""
    return Stored(subject=f"log.{SAGA}", data=encode(entry), sequence=1, time=NOW)
