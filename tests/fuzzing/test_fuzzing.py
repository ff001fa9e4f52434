"""A small part of the fuzzing, in every run: `make fuzz` looks further."""

import pytest

from tests.fuzzing.cases import check, data_of
from tests.fuzzing.targets import targets

CASES = {"configuration": 20, "policy": 6, "scenario": 60}
"""Of the targets that are slow to run; 300 of every other."""


@pytest.mark.parametrize("name", targets())
def test_bad_bytes_are_refused_and_nothing_else(name: str) -> None:
    """A target raises no error but the declared one, ends in time, and does not grow."""
    target = targets()[name]
    found = (
        check(target, data_of("test", target, number)) for number in range(CASES.get(name, 300))
    )
    assert [str(each) for each in found if each is not None] == []
