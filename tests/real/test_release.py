"""`make release`: what it writes is complete, and is what its checksums and its SBOM say."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import pytest

from tests.house.test_locks import pinned

ROOT: Final = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in the repository and return its result."""
    command = ("make", "--no-print-directory", *arguments)
    return subprocess.run(
        command, capture_output=True, check=False, cwd=ROOT, text=True, timeout=1200
    )


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that it has written."""
    if make(".venv/release/.installed").returncode != 0:
        pytest.skip("the tools of requirements-release.txt cannot be installed here")
    able = ("/usr/bin/python3", "-c", "import ensurepip, venv")
    if not Path(able[0]).exists() or subprocess.run(able, check=False).returncode != 0:
        pytest.skip("the deb is for Debian's own Python: apt-get install python3-venv")
    folder = tmp_path_factory.mktemp("released") / "dist"
    done = make("release", f"DIST={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_everything_is_there_and_has_its_checksum(released: Path, tmp_path: Path) -> None:
    """Source, wheel, deb and SBOM, each once; a changed byte is found."""
    check = ("sha256sum", "--check", "--strict", "SHA256SUMS")
    shown = subprocess.run(
        check, capture_output=True, check=True, cwd=released, text=True, timeout=60
    ).stdout

    listed = sorted(line.removesuffix(": OK") for line in shown.splitlines())
    assert sorted(each.name for each in released.iterdir()) == sorted([*listed, "SHA256SUMS"])
    assert {Path(each).suffix for each in listed} == {".gz", ".whl", ".deb", ".json"}
    copy = Path(shutil.copytree(released, tmp_path / "copy"))
    next(copy.glob("*.whl")).write_bytes(b"another")
    assert subprocess.run(check, capture_output=True, check=False, cwd=copy).returncode != 0


def test_the_sbom_lists_what_the_lock_has(released: Path) -> None:
    """The SBOM has Navarch with its licence, and every package at its version, with its hashes."""
    bom: dict[str, Any] = json.loads((released / "navarch.cdx.json").read_text())

    locked = pinned((ROOT / "requirements-lock.txt").read_text())
    assert bom["bomFormat"] == "CycloneDX"
    assert bom["metadata"]["component"]["licenses"][0]["license"]["id"] == "Apache-2.0"
    assert {each["purl"] for each in bom["components"]} == {
        f"pkg:pypi/{name}@{version}" for name, version in locked.items()
    }
    for each in bom["components"]:
        hashes = [one for place in each["externalReferences"] for one in place.get("hashes", ())]
        assert {one["alg"] for one in hashes} == {"SHA-256"}, each["name"]


def test_the_sdist_has_what_builds_the_wheel(released: Path) -> None:
    """Both have one version, and the wheel is of the package alone."""
    [sdist], [wheel] = released.glob("*.tar.gz"), released.glob("*.whl")

    assert sdist.name.removesuffix(".tar.gz") == "-".join(wheel.name.split("-")[:2])
    assert ZipFile(wheel).testzip() is None
