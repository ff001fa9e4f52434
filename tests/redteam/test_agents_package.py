"""New nodes install, as root, no package of the agent that a stranger may have put in its place."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from services.primitives.errors import ConfigurationError, SetupError
from services.provisioner.bootstrap.user_data import require_plain
from services.settings.plain_values import package_problem
from services.settings.settings_file import parse_settings

WHEEL: Final = "navarch-0.1.0-py3-none-any.whl"
DIGEST: Final = "0" * 64
REPLACEABLE: Final = (
    f"http://mirror.example/{WHEEL}",
    f"HTTP://mirror.example/{WHEEL}",
    f"navarch @ http://mirror.example/{WHEEL}",
    f"navarch[credentials] @ http://mirror.example/{WHEEL}",
    f"navarch@http://mirror.example/{WHEEL}",
    f"ftp://mirror.example/{WHEEL}",
    "git+http://mirror.example/navarch",
    "navarch@git+git://mirror.example/navarch",
    f"http://mirror.example/{WHEEL}#egg=navarch",
    f"http://mirror.example/{WHEEL}#md5=d41d8cd98f00b204e9800998ecf8427e",
    f"http://mirror.example/{WHEEL}#sha256=",
    f"http://mirror.example/{WHEEL}#sha256={DIGEST[1:]}",
    f"http://mirror.example/sha256={DIGEST}/{WHEEL}",
    f"http://mirror.example/{WHEEL}#notsha256={DIGEST}",
)
FIXED: Final = (
    "",
    "navarch~=1.0",
    f"/opt/navarch/{WHEEL}",
    f"https://mirror.example/{WHEEL}",
    f"navarch[credentials] @ https://mirror.example/{WHEEL}",
    f"http://mirror.example/{WHEEL}#sha256={DIGEST}",
    "git+https://mirror.example/navarch",
)


@pytest.mark.parametrize("package", REPLACEABLE)
def test_a_package_that_anyone_may_replace_is_refused(package: str) -> None:
    """The configuration is refused with what to do."""
    with pytest.raises(ConfigurationError, match=r"agent.package.*use https"):
        parse_settings("navarch.yaml", f"agent: {{package: '{package}'}}\n", {})


@pytest.mark.parametrize("package", REPLACEABLE)
def test_no_launch_renders_such_a_package(package: str) -> None:
    """Settings that another release has read are checked where a machine is launched, too."""
    with pytest.raises(SetupError, match="use https"):
        require_plain({"AgentPackage": package}, frozenset({"AgentPackage"}))


@pytest.mark.parametrize("package", FIXED)
def test_other_packages_are_taken(package: str) -> None:
    """A name, a path, https, and an address whose content is fixed."""
    assert package_problem(package) == ""


def test_a_wheel_with_another_checksum_is_not_installed(tmp_path: Path) -> None:
    """The program that the template calls checks it: what answers at the address is not trusted."""
    wheel = tmp_path / "evil-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(
            "evil-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n"
        )
        packed.writestr("evil-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        packed.writestr("evil-1.0.dist-info/RECORD", "")
        packed.writestr("evil.py", "")

    def install(digest: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "-q")
        place = ("--target", str(tmp_path / "site"), f"{wheel.as_uri()}#sha256={digest}")
        return subprocess.run(
            (*command, *place), capture_output=True, text=True, check=False, timeout=120
        )

    refused = install(DIGEST)
    assert refused.returncode != 0
    assert "DO NOT MATCH" in refused.stderr
    assert not (tmp_path / "site" / "evil.py").exists()
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert install(right).returncode == 0
