"""The examples pass their suites from outside, and are packaged as `navarch plugins new` writes."""

from services.cli.plugin_package import KIND_NAMES, package_files
from tests.support.plugin_suite import ROOT, suite

EXAMPLES = ROOT / "examples"


def test_the_lying_cloud_passes_its_suite() -> None:
    """Launches, removals and lists are right although the cloud lies about each."""
    assert "passed" in suite(EXAMPLES / "lying_cloud")


def test_it_is_packaged_as_a_new_plugin() -> None:
    """The command writes the same pyproject.toml for this name."""
    written = package_files(KIND_NAMES["provider"], "lying-cloud")
    assert (EXAMPLES / "lying_cloud" / "pyproject.toml").read_text() == written["pyproject.toml"]
