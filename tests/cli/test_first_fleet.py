"""docs/first-fleet.md: from `navarch init` to a machine that is healthy, explained, and leaves."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from services.cli.commands import init_command
from services.primitives.errors import NavarchError
from services.primitives.free_ports import free_ports
from services.provisioner.providers.local_gpus import (
    build_library,
    kmsg_record,
    simulated_gpus,
    write_state,
)
from services.settings.settings_file import parse_settings
from tests.cli.test_serve import READY, Served, environment
from tests.support.documented_commands import ROOT
from tests.support.inprocess import eventually, navarch

PAGE: Final = ROOT / "docs" / "first-fleet.md"
GPUS: Final = 8
WORDS_MAX: Final = 900
LINES_MAX: Final = 25
BIN: Final = str(Path(sys.executable).parent)


@pytest.mark.parametrize("host", ["10.0.0.5", "gpu-head.example.com"])
def test_init_writes_a_short_file_that_observes(host: str) -> None:
    """The file is valid, explained, of at most 25 lines, and its bus is encrypted."""
    text = init_command.configuration(host, "gpu", "first", GPUS)
    settings = parse_settings("navarch.yaml", text, {})
    pool = settings.pools["gpu"]

    assert len(text.splitlines()) <= LINES_MAX
    assert settings.agent.bus_url.startswith("tls://")
    assert ("enrolled", "observe", GPUS) == (pool.nodes, pool.mode, pool.gpu_count)


@pytest.mark.parametrize(
    ("host", "pool", "fleet"),
    [
        ("a b", "gpu", "first"),
        ("fd00::1", "gpu", "first"),
        ("$(x)", "gpu", "first"),
        ("a", "G P", "first"),
        ("a", "gpu", "*"),
    ],
)
def test_init_refuses_what_is_no_name(host: str, pool: str, fleet: str) -> None:
    """A file that cannot be read is not written."""
    with pytest.raises(NavarchError):
        init_command.configuration(host, pool, fleet, 0)


async def test_init_overwrites_nothing(tmp_path: Path) -> None:
    """A second time it says what to do."""
    file = tmp_path / "navarch.yaml"
    command = ("init", "--host", "127.0.0.1", "--file", str(file))
    assert 0 == (await navarch(*command))[0]
    before = file.read_text()
    status, _, said = await navarch(*command)

    assert 0 != status
    assert "exists: name another with --file" in said
    assert file.read_text() == before


def test_the_page_is_short() -> None:
    """A newcomer reads it in minutes."""
    assert len(PAGE.read_text().split()) <= WORDS_MAX


class FirstFleet:
    """A fleet that is served as the page says, beside the machine that joins it."""

    def __init__(self, place: Path, node: str = "gpu-01") -> None:
        self.place = place
        self.node = node
        self.config = place / "navarch.yaml"
        self.machine = place / "machine"
        self.kmsg = self.machine / "kmsg"

    async def says(self, *arguments: str) -> str:
        """Return what a command says; it must succeed."""
        status, out, err = await navarch(*arguments, "--config", str(self.config))
        assert status == 0, (arguments, out, err)
        return out

    async def health(self, name: str) -> str:
        """Return the health of a node that is listed."""
        listed = json.loads(await self.says("list", "-o", "json"))
        return next((each["health"] for each in listed if each["id"] == name), "")

    async def run_line(self, line: str) -> str:
        """Run the printed line on the machine, with places of its own."""
        places = f"--settings {self.machine}/agent.env --state {self.machine}/state"
        line = line.replace("navarch-agent join", f"navarch-agent join {places}")
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", line),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment(PATH=f"{BIN}:{os.environ['PATH']}"),
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return out.decode()

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        """Run the machine's agent, on simulated GPUs."""
        write_state(self.machine / "nvml-state", simulated_gpus(self.node, GPUS))
        self.kmsg.write_bytes(b"")
        variables = {
            "NAVARCH_NVML_LIBRARY": str(build_library(self.place / "nvml")),
            "NAVARCH_NVML_STATE": str(self.machine / "nvml-state"),
            "NAVARCH_KMSG": str(self.kmsg),
            "NAVARCH_BOOT_TESTS": "none",
            "NAVARCH_CLOUD": "none",
        }
        process = await asyncio.create_subprocess_exec(
            *(f"{BIN}/navarch-agent", "--config", str(self.machine / "agent.env")),
            stderr=asyncio.subprocess.DEVNULL,
            env=environment(**variables),
        )
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


@pytest.mark.slow
async def test_the_page_leads_to_a_healthy_machine_that_is_explained(tmp_path: Path) -> None:
    """The bus is encrypted on the way, and a machine that leaves has no access any more."""
    fleet = FirstFleet(tmp_path)
    await navarch(
        *("init", "--host", "127.0.0.1", "--gpus", str(GPUS), "--file", str(fleet.config))
    )
    port, install = free_ports(2)
    text = fleet.config.read_text().replace(":4222", f":{port}").replace("4223", str(install))
    fleet.config.write_text(f"data_dir: {tmp_path / 'data'}\n{text}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "serve", "--config", str(fleet.config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(),
        cwd=ROOT,
    )
    try:
        await Served(process, tmp_path).says(READY)
        line = await fleet.says("join", "--print", "gpu-01")
        assert f"joined as gpu-01 of pool gpu at tls://127.0.0.1:{port}" in (
            await fleet.run_line(line)
        )
        async with fleet.agent():
            await eventually(lambda: _is(fleet, "healthy"))
            gpu = simulated_gpus("gpu-01", GPUS)[3]
            said = f"NVRM: Xid (PCI:{gpu.pci}): 79, GPU has fallen off the bus."
            with fleet.kmsg.open("ab") as kernel_log:
                kernel_log.write(kmsg_record(1, 1, said))
            await eventually(lambda: _is(fleet, "unhealthy"))
            why = await fleet.says("why", "gpu-01")
            assert re.search(r"(?i)xid 79|fallen off the bus", why)
            assert "observe mode" in why
            assert "nothing replaces or ends it" in why
            assert "used " in await fleet.says("join", "--list")
            assert "has left pool gpu" in await fleet.says("leave", "gpu-01")
            assert await fleet.health("gpu-01") == ""
    finally:
        process.terminate()
        await process.communicate()


async def _is(fleet: FirstFleet, health: str) -> bool:
    return await fleet.health("gpu-01") == health
