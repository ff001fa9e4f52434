"""Each attack that once succeeded has tests, and they run."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from tests.house.modules import ROOT
from tests.redteam.attacks import ATTACKS

NOT_RUN: Final = re.compile(r"\b(?:xfail|skip|skipif|importorskip)\b")
TESTS: Final = [(each.number, test) for each in ATTACKS for test in each.tests]


def why_not_run(source: str, name: str) -> str:
    """Return what is wrong with a test of a module; nothing if it exists and always runs. Pure."""
    tree = ast.parse(source)
    defined = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [each for each in tree.body if isinstance(each, defined) and each.name == name]
    if len(found) != 1:
        return f"{len(found)} tests have this name"
    marks = [each for each in tree.body if "pytestmark" in ast.unparse(each).partition("=")[0]]
    text = "\n".join(map(ast.unparse, [*found, *marks]))
    return f"it may not run: {', '.join(NOT_RUN.findall(text))}" if NOT_RUN.search(text) else ""


def test_the_attacks_are_numbered() -> None:
    """Each once, and each has a test."""
    assert list(range(1, len(ATTACKS) + 1)) == [each.number for each in ATTACKS]
    assert {number for number, _ in TESTS} == {each.number for each in ATTACKS}


@pytest.mark.parametrize(("number", "test"), TESTS)
def test_the_test_of_an_attack_exists_and_runs(number: int, test: str) -> None:
    """A test that is renamed or expected to fail is noticed here."""
    file, _, name = test.partition("::")
    assert not why_not_run((ROOT / Path(file)).read_text(encoding="utf-8"), name), number


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def test_b(): pass", "0 tests"),
        ("@pytest.mark.xfail\ndef test_a(): pass", "xfail"),
        ("@pytest.mark.skipif(True, reason='')\nasync def test_a(): pass", "skipif"),
        ("pytestmark = pytest.mark.skip\ndef test_a(): pass", "skip"),
        ("def test_a():\n    pytest.skip('no')", "skip"),
    ],
)
def test_a_test_that_does_not_run_is_found(source: str, problem: str) -> None:
    """The check itself sees what it looks for."""
    assert problem in why_not_run(source, "test_a")
