"""A shape has what stays from run to run, and a difference in it is found."""

import pytest

from tests.support.output_shapes import JSON, NOTHING, Shape, differences, overlong, shape

TABLE = "NODE  AGE   REMARKS\nn1    1d2h  held\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (NOTHING,)),
        ('{"a": 1}', (JSON,)),
        (TABLE, ("NODE | AGE | REMARKS",)),
        (f"12 nodes of /tmp/x.\n\n{TABLE}", ("# nodes of # NODE AGE", "NODE | AGE | REMARKS")),
    ],
)
def test_a_shape_is_the_beginning_and_the_headings(text: str, expected: Shape) -> None:
    """Names with digits, paths and numbers are one sign."""
    assert shape(text) == expected


@pytest.mark.parametrize(
    ("found", "differs"),
    [
        ("NODE | AGE | REMARKS", False),
        ("NODE | REMARKS", False),
        ("NODE | REMARKS | AGE", True),
        ("NODE | SIZE | REMARKS", True),
        ("AGE | REMARKS", True),
        ("No node is like that", True),
    ],
)
def test_columns_may_go_and_nothing_else(found: str, *, differs: bool) -> None:
    """The order of columns stays, and the first column does."""
    assert (differences((found,), ("NODE | AGE | REMARKS",)) == [found]) == differs


def test_a_line_that_could_have_been_broken_is_too_long() -> None:
    """One long word is not."""
    assert overlong("a b c\nabcdefgh\nabcdefgh i", 4) == ["a b c"]
