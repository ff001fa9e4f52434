"""The real ipmitool switches power at OpenIPMI's simulator of a controller."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.power_control import IpmiPower, PowerOptions, restart_cold
from tests.support.inprocess import eventually

SIMULATOR = shutil.which("ipmi_sim")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not (SIMULATOR and shutil.which("ipmitool")), reason="no ipmitool, or no ipmi_sim"
    ),
]
CONFIG = """
name "gpu-1"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "sh {folder}/machine {folder}"
  user 1 true "" "anonymous" user 10 none md2 md5 straight
  user 2 true "admin" "secret" admin 10 none md2 md5 straight
"""
COMMANDS = """
mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
mc_enable 0x20
"""
MACHINE = """
cd "$1"
case "$2 $3" in
"get power") echo "power:$(cat power)" ;;
"set power") echo "$4" > power; echo "power $4" >> orders ;;
"set shutdown") [ -e hung ] || echo 0 > power; echo shutdown >> orders ;;
esac
"""
"""A machine whose operating system may be hung, as the simulator runs it for each order."""
OPTIONS = PowerOptions(type="ipmi", user="admin", ipmi_cipher_suite=3)


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[IpmiPower]:
    """A controller whose machine is on."""
    (tmp_path / "machine").write_text(MACHINE)
    (tmp_path / "power").write_text("1")
    (tmp_path / "state").mkdir()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    (tmp_path / "lan.conf").write_text(CONFIG.format(port=port, folder=tmp_path))
    (tmp_path / "commands").write_text(COMMANDS)
    assert SIMULATOR is not None
    process = await asyncio.create_subprocess_exec(
        *(SIMULATOR, "-n", "-c", f"{tmp_path}/lan.conf", "-f", f"{tmp_path}/commands"),
        *("-s", f"{tmp_path}/state"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    power = IpmiPower(f"127.0.0.1:{port}", OPTIONS, "secret")

    async def is_on() -> bool:
        try:
            return await power.power() == "on"
        except ProviderError:
            return False

    try:
        await eventually(is_on)
        yield power
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("hung", [False, True])
async def test_a_machine_is_switched_off_and_on(
    controller: IpmiPower, tmp_path: Path, hung: bool
) -> None:
    """A machine is shut down, or cut where its operating system does not obey."""
    if hung:
        (tmp_path / "hung").touch()

    async def short(_: float) -> None:
        await asyncio.sleep(0)

    await restart_cold("gpu-1", controller, short)
    assert await controller.power() == "on"
    orders = ["shutdown", *(["power 0"] if hung else []), "power 1"]
    assert (tmp_path / "orders").read_text().splitlines() == orders


async def test_a_wrong_password_is_an_error_without_it(controller: IpmiPower) -> None:
    """Nothing is switched."""
    port = controller._port
    wrong = IpmiPower(f"127.0.0.1:{port}", OPTIONS, "pw7")
    with pytest.raises(ProviderError) as error:
        await wrong.switch("off")
    assert "pw7" not in str(error.value)
    assert await controller.power() == "on"
