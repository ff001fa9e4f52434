"""The invariants know by a node's last event whether it is lost."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from schemas.node_events import Lost, NodeEvent, Returned, Terminated
from services.simulator.engine.node_liveness import NodeLiveness
from services.simulator.engine.virtual_time import EPOCH


def event(of: type[NodeEvent], seconds: float) -> NodeEvent:
    """Return an event of the given type about n1, some seconds after the epoch."""
    time = EPOCH + timedelta(seconds=seconds)
    return of(id=f"{of.__name__}-{seconds}", time=time, pool="training", node="n1")


LOST = event(Lost, 10)


@pytest.mark.parametrize(
    ("events", "lost"),
    [
        ([LOST], True),
        ([LOST, event(Returned, 20)], False),
        ([LOST, event(Returned, 20), LOST], False),
        ([LOST, event(Terminated, 20), LOST], False),
        ([LOST, event(Terminated, 20), event(Lost, 30)], True),
    ],
    ids=["lost", "returned", "replayed", "replayed after its end", "the next of its name"],
)
def test_a_loss_that_is_published_again_is_none_of_the_next_machine(
    events: Sequence[NodeEvent], lost: bool
) -> None:
    """An operator replays what was set aside, when others have given the name to another."""
    liveness = NodeLiveness(lambda: 0.0)
    for each in events:
        liveness.published(each)
    assert lost == ("n1" in liveness.lost)
