"""The poison table has every message and record, or says why not."""

from tests.whole_fleet.poison import NOT_PUBLISHED, stored_types


def test_the_table_has_every_type_or_the_reason_why_not() -> None:
    """A new type fails here until it has a subject in the table."""
    assert {name for name, found in stored_types() if not found} == set(NOT_PUBLISHED)
