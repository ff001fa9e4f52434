"""The costs of instances are reported by day, pool and label."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.instance_records import InstanceRecord
from schemas.saga_params import LaunchSpec
from services.cli.commands.report_commands import cost_text
from services.fleet_client.cost_report import CostRow, cost_report

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
UNTIL = NOON + timedelta(days=1)


def ran(
    begin: float | None, end: float | None, price: float = 2.0, pool: str = "a", team: str = ""
) -> InstanceRecord:
    """An instance from one hour to another after NOON; None: not running, not terminated."""
    labels = {"team": team} if team else {}
    return InstanceRecord(
        pool=pool,
        instance=f"{pool}-1",
        provider="aws",
        token="t",
        launch=LaunchSpec(fleet="f", provider="aws", instance_type="p5", labels=labels),
        intended_at=NOON,
        dollars_per_hour=price,
        running_at=None if begin is None else NOON + timedelta(hours=begin),
        terminated_at=None if end is None else NOON + timedelta(hours=end),
    )


def row(day: str, hours: float, dollars: float, **more: object) -> CostRow:
    """Return a row of pool a."""
    fields = {"pool": "a", "day": f"2026-03-0{day}", "instance_hours": hours, "dollars": dollars}
    return msgspec.convert(fields | more, CostRow)


@pytest.mark.parametrize(
    ("records", "rows"),
    [
        ([], []),
        ([ran(None, None)], []),
        ([ran(-9, -1)], []),
        ([ran(1, 3)], [row("2", 2, 4)]),
        ([ran(-5, None)], [row("2", 12, 24), row("3", 12, 24)]),
        ([ran(11, 13)], [row("2", 1, 2), row("3", 1, 2)]),
        ([ran(0, 1), ran(2, 4, 3.0)], [row("2", 3, 8)]),
        ([ran(0, 2, 0.0), ran(0, 1)], [row("2", 3, 2, unpriced_hours=2.0)]),
        ([ran(0, 1, pool="b"), ran(0, 1)], [row("2", 1, 2), row("2", 1, 2, pool="b")]),
        ([ran(0, 1, team="x"), ran(0, 1)], [row("2", 1, 2), row("2", 1, 2, label="x")]),
    ],
)
def test_costs_are_summed_by_day_pool_and_label(
    records: list[InstanceRecord], rows: list[CostRow]
) -> None:
    """Rows are in order; an instance that never ran costs nothing, one without a price is free."""
    assert list(cost_report(records, NOON, UNTIL, "team").rows) == rows


def test_without_a_label_a_pool_is_one_row() -> None:
    """A pool is one row, whatever labels its nodes have."""
    found = cost_report([ran(0, 1, team="x"), ran(0, 1, team="y")], NOON, UNTIL)
    assert found.rows == (row("2", 2, 4),)


hours = st.floats(-100, 100)


@given(st.lists(st.tuples(hours, hours, st.sampled_from([0.0, 1.5, 90.0])), max_size=8))
def test_rows_add_up_to_what_ran(spans: list[tuple[float, float, float]]) -> None:
    """Rows add up to the whole, however many days an instance ran."""
    records = [ran(min(a, b), max(a, b), price) for a, b, price in spans]
    found = cost_report(records, NOON, UNTIL)
    inside = [(max(0.0, min(a, b)), min(24.0, max(a, b)), price) for a, b, price in spans]
    whole = [(end - begin, price) for begin, end, price in inside if end > begin]
    assert found.instance_hours == pytest.approx(sum(each for each, _ in whole), abs=0.02)
    assert found.dollars == pytest.approx(sum(each * price for each, price in whole), abs=0.02)


def test_the_table_has_a_column_for_the_label() -> None:
    """Escaped, since labels are text of the configuration."""
    report = cost_report([ran(0, 2, 0.0), ran(0, 1, team="x\x1b[31m")], NOON, UNTIL, "team")
    text = cost_text(report)
    assert "Instances cost $2.00 for 3.0 hours" in text
    assert "The price of 2.0 of these hours is not known" in text
    assert "DAY (UTC)" in text
    assert "TEAM" in text
    assert "\x1b" not in text
    assert "TEAM" not in cost_text(cost_report([ran(0, 1)], NOON, UNTIL))
