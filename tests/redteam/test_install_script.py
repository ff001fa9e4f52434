"""The script that installs an agent as root runs no program that a stranger may have put there."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.house.modules import ROOT

SCRIPT: Final = ROOT / "deploy" / "install-agent.sh"
WHEEL: Final = "navarch-0.1.0-py3-none-any.whl"


def run(package: str, place: Path) -> str:
    """Run the script to where it would begin; return what it says."""
    # Without `id` in the path it never is root: it ends before it writes anything.
    found = subprocess.run(
        ["/bin/sh", str(SCRIPT), "--package", package],
        env={"PATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert found.returncode != 0
    return found.stderr


@pytest.mark.parametrize(
    ("package", "says"),
    [
        ("navarch", "must be a path"),
        (f"http://mirror.example/{WHEEL}", "over https"),
        (f"http://mirror.example/{WHEEL}#egg=navarch", "over https"),
        (f"http://mirror.example/{WHEEL}#md5=d41d8cd98f00b204e9800998ecf8427e", "over https"),
    ],
)
def test_a_package_that_another_may_have_made_is_not_installed(
    package: str, says: str, tmp_path: Path
) -> None:
    """A name that anyone may register, and a file that anyone on the way may replace."""
    assert says in run(package, tmp_path)


@pytest.mark.parametrize(
    "package",
    [
        f"./{WHEEL}",
        f"https://mirror.example/{WHEEL}",
        f"http://m.example/{WHEEL}#sha256={'0' * 64}",
    ],
)
def test_other_packages_are_refused_for_no_such_reason(package: str, tmp_path: Path) -> None:
    """A path, an address over https, and one whose content is fixed pass this check."""
    assert "run it as root" in run(package, tmp_path)
