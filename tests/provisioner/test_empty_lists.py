"""A provider's list that lacks everything which should run there is reported."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.saga_params import LaunchSpec
from services.provisioner.provider_client.provider import Instance
from services.provisioner.removal.empty_lists import LISTED_WITHIN, NAMED_MAX, empty_lists

NOW = datetime(2026, 11, 29, 3, tzinfo=UTC)
RECORD = InstanceRecord(
    pool="p",
    instance="n1",
    state="running",
    provider="aws",
    token="t",
    launch=LaunchSpec(fleet="f", provider="aws", instance_type="x"),
    provider_id="i-1",
    intended_at=NOW - timedelta(hours=2),
    running_at=NOW - timedelta(hours=1),
)


def record(number: int, **change: Any) -> InstanceRecord:
    """Return a running instance."""
    named = {"instance": f"n{number}", "provider_id": f"i-{number}"}
    return replace(RECORD, **(named | change))


def shown(name: str, provider_id: str) -> Instance:
    """Return what a provider lists."""
    return Instance(provider_id=provider_id, pool="p", name=name)


@pytest.mark.parametrize(
    ("records", "listed", "about"),
    [
        ([record(1), record(2)], {"aws": []}, ["provider aws"]),
        ([record(1), record(2)], {"aws": [shown("other", "i-9")]}, ["provider aws"]),
        ([record(1), record(2)], {"aws": [shown("", "i-2")]}, []),
        ([record(1), record(2)], {"aws": [shown("n2", "I-2")]}, []),  # another form of its ID
        ([record(1)], {"aws": []}, []),  # it may well be gone
        ([record(1), record(2)], {}, []),  # it could not be listed
        ([record(1), record(2)], {"gcp": []}, []),
        ([record(1), record(2, state="terminating")], {"aws": []}, []),
        ([record(1), record(2, running_at=NOW - LISTED_WITHIN / 2)], {"aws": []}, []),
        (
            [record(1), record(2), record(3, provider="gcp"), record(4, provider="gcp")],
            {"aws": [shown("n1", "i-1")], "gcp": []},
            ["provider gcp"],
        ),
    ],
)
def test_a_list_that_shows_nothing_of_what_runs_is_reported(
    records: list[InstanceRecord], listed: dict[str, list[Instance]], about: list[str]
) -> None:
    """An instance that is new, ends or is alone says nothing of the list."""
    found = empty_lists(records, listed, NOW)
    assert [each.about for each in found] == about


def test_the_report_names_a_few_of_many() -> None:
    """The report says how many there are."""
    [found] = empty_lists(list(map(record, range(40))), {"aws": []}, NOW)
    assert "none of the 40 instances" in found.reason
    assert f"{40 - NAMED_MAX} others" in found.reason
