"""`navarch plugins new`: each package passes its kind's suite as it is written."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.plugin_kinds import AUTOSCALER, HEALTH_CHECK, KINDS, PROVIDER, PluginKind
from services.cli.app import app
from services.cli.plugin_options import taken_names
from services.cli.plugin_package import KIND_NAMES, check_name, package_files
from services.primitives.errors import NavarchError
from tests.support.plugin_suite import suite


def new(*arguments: str) -> None:
    """Run the command in this process."""
    CliRunner().invoke(app, ["plugins", "new", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_new_package_passes_its_suite(kind: str, tmp_path: Path) -> None:
    """Run the written package; its entry point names the class of its module."""
    place = tmp_path / "made"
    new(kind, "night-owl", "--directory", str(place))
    project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
    assert project["name"] == "navarch-night-owl"
    assert project["entry-points"] == {
        KIND_NAMES[kind].group: {"night-owl": "navarch_night_owl:NightOwl"}
    }
    assert "passed" in suite(place)


def test_every_kind_is_offered() -> None:
    """The help lists each kind of `KINDS`, in its order."""
    text = CliRunner().invoke(app, ["plugins", "new", "--help"]).output
    assert [each for each in KIND_NAMES if each not in text] == []
    assert tuple(KIND_NAMES.values()) == KINDS


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        (PROVIDER, "aws", "the provider 'aws' is there already"),
        (AUTOSCALER, "queue", "the autoscaler 'queue' is there already"),
        (HEALTH_CHECK, "boot", "the health check 'boot' is there already"),
        (PROVIDER, "Acme", "no name of a package"),
        (PROVIDER, "acme_x", "no name of a package"),
        (PROVIDER, "9lives", "no name of a package"),
        (PROVIDER, "../up", "no name of a package"),
        (PROVIDER, "a" * 51, "50 characters at most"),
    ],
)
def test_a_name_that_cannot_be_is_refused(kind: PluginKind, name: str, problem: str) -> None:
    """Names of Navarch's own plugins, and what is no name of a package."""
    with pytest.raises(NavarchError, match=problem):
        check_name(name, kind, taken_names(kind.group))


def test_a_keyword_is_no_class_name() -> None:
    """`none` is a name, and `None` would be no class."""
    assert "class NonePlugin:" in package_files(PROVIDER, "none")["navarch_none.py"]


def test_a_directory_that_exists_is_left_alone(tmp_path: Path) -> None:
    """The command refuses it and writes nothing; so it does with a kind that is none."""
    (tmp_path / "mine.py").write_text("x = 1")
    with pytest.raises(NavarchError, match="is there already"):
        new("provider", "acme", "--directory", str(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == ["mine.py"]
    with pytest.raises(NavarchError, match="no kind of plugins 'cloud'; there are provider"):
        new("cloud", "acme", "--directory", str(tmp_path / "new"))
