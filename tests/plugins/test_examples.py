"""The examples pass their suites from outside, and are packaged as `navarch plugins new` writes."""

import tomllib
from pathlib import Path

import pytest

from schemas.plugin_kinds import KINDS, PluginKind
from services.cli.plugin_package import package_files
from tests.support.plugin_suite import ROOT, suite

EXAMPLES = ROOT / "examples"
PACKAGES = sorted(each.parent for each in EXAMPLES.glob("*/pyproject.toml"))
every_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.name)


def kind_of(package: Path) -> PluginKind:
    """Return the kind of plugin whose entry point a package has."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    (group,) = project["entry-points"]
    return next(each for each in KINDS if each.group == group)


@every_package
def test_an_example_passes_its_suite(package: Path) -> None:
    """Each package runs its kind's suite and its own tests as its author does."""
    assert "passed" in suite(package)


@every_package
def test_an_example_is_packaged_as_a_new_plugin(package: Path) -> None:
    """The command writes the same pyproject.toml for this name."""
    written = package_files(kind_of(package), package.name.replace("_", "-"))
    assert (package / "pyproject.toml").read_text() == written["pyproject.toml"]


@every_package
def test_an_example_runs_its_kind_s_suite(package: Path) -> None:
    """The test inherits from a suite, and has a test of its own besides."""
    text = (package / f"test_navarch_{package.name}.py").read_text()
    assert "Conformance):" in text
    assert "\ndef test_" in text or "\nasync def test_" in text


def test_there_is_an_example_of_each_kind() -> None:
    """Each kind has one folder, in a row of the table."""
    assert sorted(kind_of(each).name for each in PACKAGES) == sorted(each.name for each in KINDS)
    table = (EXAMPLES / "README.md").read_text()
    rows = [f"| {kind_of(each).name} | [{each.name}]({each.name}/" for each in PACKAGES]
    assert [each for each in rows if each not in table] == []
