"""The wheel, in an environment outside of the repository, beside packages of the same names."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "NOTICE")
PACKAGES: Final = ("agent", "navarch", "schemas", "services", "config", "deploy/wheel")
COLLIDING: Final = ("agent", "schemas", "services")
PLUGIN: Final = """
import msgspec
from navarch.schemas.node_events import CheckResult
from navarch.schemas.settings import Setting
from navarch.services.provisioner.provider_client.provider import Instance, ProvisionRequest


class ScratchDisk:
    name = "scratch-disk"
    interval_seconds = 300.0

    async def run(self) -> CheckResult:
        return CheckResult(name=self.name, ok=True, detail="/scratch can be written")


class Options(Setting, frozen=True, kw_only=True):
    url: str


def tried(request: ProvisionRequest) -> Instance:
    return Instance(name=request.name, provider_id=request.token)
"""
CONFORMS: Final = """
from acme_checks import ScratchDisk
from navarch.agent.maintenance.diagnostics.health_check_conformance import HealthCheckConformance


class TestScratchDisk(HealthCheckConformance):
    make = ScratchDisk
"""


def run(*command: str | Path, where: Path) -> str:
    """Both outputs of a command, which must succeed; without the repository on Python's path."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        capture_output=True,
        check=False,
        cwd=where,
        env=outside,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Installed:
    """The wheel and the environment that it is installed into."""

    def __init__(self, folder: Path) -> None:
        self.away = folder / "away"
        self.away.mkdir()
        source = folder / "source"
        for name in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        for name in (*SOURCES, "constraints.txt"):
            shutil.copy(ROOT / name, source / name)
        build = ("-m", "build", "--sdist", "--outdir", str(folder), str(source))
        run(sys.executable, *build, where=self.away)
        self.sdist = next(folder.glob("navarch-*.tar.gz"))
        made = ("-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(self.sdist))
        run(sys.executable, *made, where=self.away)
        self.wheel = next(folder.glob("navarch-*.whl"))
        run(sys.executable, "-m", "venv", str(folder / "venv"), where=self.away)
        self.programs = folder / "venv" / "bin"
        limits = ("-c", str(source / "constraints.txt"))
        extras = f"{self.wheel}[gateway,embedded,kubernetes,mcp,conformance]"
        run(self.programs / "pip", "install", "-q", *limits, extras, where=self.away)
        [self.packages] = (folder / "venv").glob("lib/python*/site-packages")
        for name in COLLIDING:
            other = self.packages / name / "__init__.py"
            other.parent.mkdir()
            other.write_text(f"raise ImportError('this is another {name}')\n")

    def python(self, *arguments: str | Path) -> str:
        """Run its Python."""
        return run(self.programs / "python", *arguments, where=self.away)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Built of the sdist, installed once."""
    return Installed(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_one_package(installed: Installed) -> None:
    """All modules are inside `navarch`, with types, licence, data and a record that is right."""
    names = ZipFile(installed.wheel).namelist()
    folders = {name.partition("/")[0] for name in names}
    assert {each.partition(".")[0] for each in folders} == {"navarch", "navarch-0"}
    ends = ("navarch/py.typed", "LICENSE", "NOTICE", "share/navarch/config/health-policy.yaml")
    for end in ends:
        assert any(name.endswith(end) for name in names), end
    assert "No broken requirements found." in installed.python("-m", "pip", "check")
    checked = """
import base64, hashlib
from importlib.metadata import distribution
for each in distribution("navarch").files:
    if each.hash and each.locate().exists():
        found = hashlib.sha256(each.read_binary()).digest()
        made = base64.urlsafe_b64encode(found).decode().rstrip("=")
        assert "bin/" in str(each) or made == each.hash.value, each
"""
    installed.python("-c", checked)


def test_no_module_needs_another_name(installed: Installed) -> None:
    """Each is imported, and each entry point is found, although other `services` are there."""
    every = """
import importlib, pkgutil, navarch
from importlib.metadata import distribution
names = [each.name for each in pkgutil.walk_packages(navarch.__path__, "navarch.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
points = [each for each in distribution("navarch").entry_points]
for each in points:
    assert each.load().__module__.startswith("navarch."), each
print(len(names), len(points))
"""
    modules, points = installed.python("-c", every).split()[-2:]
    assert int(modules) > 600
    assert int(points) > 20


def test_the_demo_runs(installed: Installed) -> None:
    """`navarch demo` replaces a node from the wheel alone, and the simulation finds its plugins."""
    assert " replaced " in run(installed.programs / "navarch", "demo", where=installed.away)
    fuzz = ("simulator", "fuzz", "--seeds", "1", "--minutes", "1", "--jobs", "1")
    run(installed.programs / "navarch", *fuzz, where=installed.away)


@pytest.mark.parametrize(
    "service",
    ["pool_manager", "health_monitor", "provisioner", "notifier", "metrics", "gateway"],
)
def test_each_service_is_a_module(installed: Installed, service: str) -> None:
    """A service is a module, which units, containers and pods start."""
    module = f"navarch.services.{service}"
    assert f"python -m {module}" in installed.python("-m", module, "--help")


def test_a_plugin_is_typed_and_conforms(installed: Installed) -> None:
    """Mypy sees the types of a plugin's imports, and the conformance suite runs on it."""
    place = installed.away / "plugin"
    place.mkdir()
    plugin = place / "acme_checks.py"
    plugin.write_text(PLUGIN)
    (place / "test_acme.py").write_text(CONFORMS)
    python = installed.programs / "python"
    check = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python, plugin.name)
    assert "no issues found" in run(*check, where=place)
    plugin.write_text(PLUGIN.replace("ok=True", 'ok="yes"'))
    with pytest.raises(AssertionError, match='has incompatible type "str"; expected "bool"'):
        run(*check, where=place)
    plugin.write_text(PLUGIN)
    suite = ("-m", "pytest", "-q", "-o", "asyncio_mode=auto", "test_acme.py")
    assert " passed" in run(python, *suite, where=place)


def test_a_new_plugin_conforms(installed: Installed) -> None:
    """The wheel has the texts of `navarch plugins new`, and what they import."""
    place = installed.away / "new"
    command = ("plugins", "new", "provider", "acme", "--directory", str(place))
    run(installed.programs / "navarch", *command, where=installed.away)
    assert " passed" in run(installed.programs / "python", "-m", "pytest", "-q", where=place)
