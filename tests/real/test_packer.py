"""The Packer template, validated by Packer."""

import shutil
import subprocess
from pathlib import Path

import pytest

WHEEL = "https://example.com/navarch-0.1.0-py3-none-any.whl"
PACKER = shutil.which("packer")
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(PACKER is None, reason="no packer here: apt-get install packer"),
]


def test_template_is_valid(tmp_path: Path) -> None:
    """Debian's Packer predates plugins: the builder is built in, without a `packer` block."""
    assert PACKER is not None
    for name in ("config", "deploy"):
        shutil.copytree(ROOT / name, tmp_path / name)
    place = tmp_path / "deploy" / "packer"
    (place / "plugins.pkr.hcl").unlink()
    done = subprocess.run(
        [PACKER, "validate", "-var", f"package={WHEEL}", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_script_is_valid_for_sh() -> None:
    """The image's shell is dash."""
    done = subprocess.run(["sh", "-n", str(ROOT / "deploy/packer/install.sh")], check=False)

    assert 0 == done.returncode
