"""The agent's package and installer, in a clean Debian; made by debootstrap of Debian's archive."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
NEEDED: Final = ("debootstrap", "dpkg-deb", "unshare", "chroot")
GIVEN: Final = ("--pool", "training", "--node", "training-7", "--nats-url", "nats://bus:4222")
XID: Final = "3,1,1000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(shutil.which(each) for each in NEEDED),
        reason="needs root, and on Debian: apt-get install debootstrap",
    ),
]


def run(*command: str | Path, where: Path = ROOT, fails: bool = False) -> str:
    """Both outputs of a command, which succeeds or `fails`."""
    done = subprocess.run(
        command, capture_output=True, check=False, cwd=where, text=True, timeout=900
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


class Debian:
    """A root file system of Debian with Python, and in /navarch what a release has of the agent."""

    def __init__(self, root: Path, wheel: Path) -> None:
        self.root = root
        self.wheel = wheel
        for name in ("deploy", "config"):
            shutil.copytree(ROOT / name, root / "navarch" / name)
        shutil.copy(wheel, root / "navarch")

    def run(self, *command: str, network: bool = False, fails: bool = False) -> str:
        """Run something in it; without `network` nothing is reached."""
        apart = () if network else ("unshare", "--net")
        inside = ("chroot", str(self.root), *command)
        if network:
            shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
            # A site whose network has an authority of its own.
            if authority := os.environ.get("PIP_CERT"):
                place = self.root / authority.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(authority, place)
        return run(*apart, *inside, fails=fails)

    def has(self, path: str) -> bool:
        """Return whether a file is there."""
        return (self.root / path.lstrip("/")).exists()


def release() -> str:
    """The Debian that this is: the package is built for its Python."""
    lines = Path("/etc/os-release").read_text().splitlines()
    named = dict(line.partition("=")[::2] for line in lines)
    if named.get("ID") != "debian":
        pytest.skip("the package is built on the Debian that it is for; this is another system")
    able = ("/usr/bin/python3", "-c", "import ensurepip, venv")
    if not Path(able[0]).exists() or subprocess.run(able, check=False).returncode != 0:
        pytest.skip("the package is for Debian's own Python: apt-get install python3-venv")
    return named["VERSION_CODENAME"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a clean root, of which each test has a copy, and the wheel."""
    folder = tmp_path_factory.mktemp("debian")
    given = ("--variant=minbase", "--include=python3", release(), str(folder / "root"))
    made = subprocess.run(
        ("debootstrap", *given), capture_output=True, check=False, text=True, timeout=900
    )
    if made.returncode != 0:
        pytest.skip(f"debootstrap makes no root here: {made.stdout.strip().splitlines()[-1:]}")
    build = ("-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT))
    run(sys.executable, *build)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def debian(base: Path, tmp_path: Path) -> Iterator[Debian]:
    """Yield a clean Debian."""
    [wheel] = base.glob("navarch-*.whl")
    root = tmp_path / "root"
    run("cp", "-a", base / "root", root)
    yield Debian(root, wheel)
    shutil.rmtree(root)


def installer(debian: Debian) -> tuple[str, ...]:
    """Return the installer's command, but for the node's settings."""
    return ("sh", "/navarch/deploy/install-agent.sh", "--package", f"/navarch/{debian.wheel.name}")


def unit_problems(debian: Debian) -> str:
    """Return systemd's words about the unit as it is in this root.

    The root has no systemd of its own.
    """
    if shutil.which("systemd-analyze") is None:
        return ""
    for each in Path("/lib/systemd/system").glob("*.target"):
        shutil.copy(each, debian.root / "lib/systemd/system")
    root = f"--root={debian.root}"
    return run("systemd-analyze", "verify", "--man=no", root, "navarch-agent.service")


def test_the_package_installs_runs_and_leaves(debian: Debian) -> None:
    """The package needs no network: the agent runs, an upgrade keeps settings.

    A purge leaves nothing.
    """
    out = debian.root / "navarch"
    run(ROOT / "deploy/deb/build.sh", debian.wheel, out)
    [package] = out.glob("*.deb")
    inside = f"/navarch/{package.name}"
    other = debian.root / "opt/navarch/bin/pip"
    other.parent.mkdir(parents=True)
    other.touch()
    assert "/opt/navarch is in use already" in debian.run("dpkg", "-i", inside, fails=True)
    other.unlink()
    assert "write NAVARCH_POOL" in debian.run("dpkg", "-i", inside)
    agent = "/opt/navarch/bin/navarch-agent"
    (debian.root / "navarch/kmsg").write_text(f"{XID}\n")
    assert '"code":79' in debian.run(agent, "parse", "/navarch/kmsg")
    assert "POOL" in debian.run(agent, "--check", fails=True)
    assert debian.has("/lib/systemd/system/navarch-agent.service")
    assert unit_problems(debian) == ""
    assert not [*(debian.root / "opt/navarch").rglob("pip")]
    # No file names the folder in which the package was made.
    assert run("grep", "-rlI", "/tmp/tmp[.]", debian.root / "opt/navarch", fails=True) == ""

    said = debian.run(*installer(debian), *GIVEN, fails=True)
    assert "has the package navarch-agent" in said

    settings = debian.root / "etc/navarch/agent.env"
    settings.write_text("NAVARCH_POOL=training\n")
    before = {each: each.read_bytes() for each in sorted((debian.root / "opt").rglob("*.pyc"))}
    debian.run("dpkg", "-i", inside)
    assert settings.read_text() == "NAVARCH_POOL=training\n"
    after = {each: each.read_bytes() for each in sorted((debian.root / "opt").rglob("*.pyc"))}
    assert before == after
    debian.run("dpkg", "--remove", "navarch-agent")
    assert settings.exists()
    assert not debian.has("/opt/navarch")
    debian.run("dpkg", "--purge", "navarch-agent")
    assert not debian.has("/etc/navarch")


def test_the_installer_says_what_is_missing_and_then_installs(debian: Debian) -> None:
    """Offline each lack is named with its remedy; a folder of wheels is enough."""
    script = installer(debian)
    said = debian.run(*script, *GIVEN, fails=True)
    assert "python3-venv is missing and Debian's archive cannot be used" in said
    assert not debian.has("/etc/navarch/agent.env")
    debian.run("apt-get", "update", "-q", network=True)
    debian.run("apt-get", "install", "-yq", "--no-install-recommends", "python3-venv", network=True)
    said = debian.run(*script, *GIVEN, fails=True)
    assert "give --wheels wheels" in said
    (debian.root / "wheels").mkdir()
    said = debian.run(*script, *GIVEN, "--wheels", "/wheels", fails=True)
    assert "/wheels lacks what is named above" in said
    get = ("/opt/navarch/bin/pip", "wheel", "-q", "-w", "/wheels")
    certificate = [f"--cert={each}" for each in (os.environ.get("PIP_CERT"),) if each]
    wanted = f"/navarch/{debian.wheel.name}[credentials]"
    debian.run(*get, *certificate, wanted, network=True)
    said = debian.run(*script, *GIVEN, "--wheels", "/wheels", "--gpus", "8")
    assert "systemd does not run here" in said
    assert not debian.has("/opt/navarch.unfinished")
    settings = debian.root / "etc/navarch/agent.env"
    lines = settings.read_text().splitlines()
    assert "NAVARCH_NODE=training-7" in lines
    assert unit_problems(debian) == ""
    assert settings.stat().st_mode & 0o777 == 0o600

    debian.run(*script, "--gpus", "4", "--wheels", "/wheels")
    changed = settings.read_text().splitlines()
    assert sorted(changed) == sorted([*lines[:-1], "NAVARCH_GPU_COUNT=4"])
    assert "usage: navarch-agent" in debian.run("/opt/navarch/bin/navarch-agent", "--help")
