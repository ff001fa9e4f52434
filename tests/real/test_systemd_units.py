"""systemd judges the units of the control plane and of the agent."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
CONTROL_PLANE: Final = ROOT / "deploy" / "systemd" / "navarch@.service"
AGENT: Final = ROOT / "config" / "navarch-agent.service"
EXPOSURE_MAX: Final = {CONTROL_PLANE: 2.0, AGENT: 8.2}
"""From 0 (shut in) to 10 (unconfined). The agent is root, with devices and the kernel log."""
INSTALLER: Final = ROOT / "deploy" / "install-agent.sh"

analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="no systemd-analyze here: apt-get install systemd",
)


def output_of(*command: str) -> str:
    """Return both outputs of a command."""
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.real
@analyze
@pytest.mark.parametrize("unit", EXPOSURE_MAX, ids=lambda unit: unit.name)
def test_systemd_finds_no_mistake_in_a_unit(unit: Path, tmp_path: Path) -> None:
    """`verify` prints nothing of a unit with an existing program in place of Navarch's."""
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text()))

    shown = output_of("systemd-analyze", "verify", str(copy))

    assert "" == "\n".join(line for line in shown.splitlines() if "navarch" in line)


@pytest.mark.real
@analyze
@pytest.mark.parametrize("unit", EXPOSURE_MAX, ids=lambda unit: unit.name)
def test_units_are_shut_in(unit: Path) -> None:
    """The exposure that systemd gives the unit stays within its bound."""
    shown = output_of("systemd-analyze", "security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", shown)

    assert found is not None
    assert float(found[1]) <= EXPOSURE_MAX[unit]


def test_the_installer_takes_no_bare_name_from_an_index() -> None:
    """A name that a stranger could register is refused before anything is installed."""
    given = ("--pool", "a", "--node", "b", "--nats-url", "nats://bus:4222")

    shown = output_of("sh", str(INSTALLER), "--package", "navarch", *given)

    assert "must be a path" in shown
