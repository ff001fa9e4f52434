"""The Packer template, judged by Packer."""

import shutil
import subprocess
from pathlib import Path

import pytest

PACKER = shutil.which("packer")
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(PACKER is None, reason="no packer here: apt-get install packer"),
]


def test_the_template_is_valid(tmp_path: Path) -> None:
    """Debian's Packer is older than plugins: it has the builder itself, and no `packer` block."""
    assert PACKER is not None
    for name in ("config", "deploy"):
        shutil.copytree(ROOT / name, tmp_path / name)
    place = tmp_path / "deploy" / "packer"
    (place / "plugins.pkr.hcl").unlink()
    done = subprocess.run(
        [PACKER, "validate", str(place)], capture_output=True, text=True, check=False
    )

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_the_script_is_one_that_sh_reads() -> None:
    """The shell of the image is dash."""
    done = subprocess.run(["sh", "-n", str(ROOT / "deploy/packer/install.sh")], check=False)

    assert 0 == done.returncode
