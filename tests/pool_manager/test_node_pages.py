"""Pages of nodes fit in a message, however long their labels are, and leave none out."""

import msgspec
import pytest

from schemas.fleet_queries import NodeView
from schemas.node_records import NodeRecord
from schemas.saga_params import LaunchSpec
from schemas.stream_specs import MESSAGE_BYTES_MAX
from services.pool_manager.queries import node_view, page_of

LABELS = {f"example.com/label-{number}": "x" * 60 for number in range(40)}
NAMES = [f"n-{number:04}" for number in range(1_200)]


def view(name: str, labels: dict[str, str]) -> NodeView:
    """A node of a pool with labels."""
    launch = LaunchSpec(fleet="f", provider="aws", instance_type="p5", region="r", labels=labels)
    record = NodeRecord(pool="training", node=name, launch=launch, hostname=f"host-{name}")
    return node_view(record, None)


@pytest.mark.parametrize("labels", [{}, LABELS])
@pytest.mark.parametrize("limit", [1_000, 100])
def test_every_node_is_in_one_page(labels: dict[str, str], limit: int) -> None:
    """With its hostname and labels."""
    every = [(f"training.{name}", view(name, labels)) for name in NAMES]
    found: list[NodeView] = []
    after, more = "", True
    while more:
        page = page_of(((key, each) for key, each in every if key > after), limit)
        assert len(msgspec.json.encode(page)) < MESSAGE_BYTES_MAX
        assert 0 < len(page.items) <= limit
        found += [msgspec.json.decode(each, type=NodeView) for each in page.items]
        after, more = page.next, bool(page.next)

    assert [each.id for each in found] == NAMES
    assert {each.hostname for each in found} == {f"host-{name}" for name in NAMES}
    assert all(each.labels == labels for each in found)


def test_there_may_be_none() -> None:
    """Then nothing follows."""
    assert page_of(iter(()), 10).next == ""
