"""Machines join over SSH: real sshd, each with its own /opt, settings, state, processes and name.

That needs root, for namespaces. The agent is the wheel of this checkout, without GPUs.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

from services.cli.ssh_join import upgrade_steps
from services.primitives.free_ports import free_ports
from tests.cli.test_first_fleet import FirstFleet
from tests.cli.test_serve import READY, environment, serving
from tests.real.sshd import CONFIG, SSHD, make_run_folder, new_key
from tests.real.test_wheel import PACKAGES, SOURCES
from tests.support.documented_commands import ROOT
from tests.support.inprocess import eventually, navarch

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
OWN: Final = {"opt": "/opt", "etc": "/etc/navarch", "lib": "/var/lib/navarch-agent"}
"""Folder of a host -> where it is bound."""
POOLS: Final = """
providers: {machines: {type: enrolled}}
pools:
  gpu: {provider: machines, nodes: enrolled, min_nodes: 0, max_nodes: 9, mode: observe}
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the wheels of the agent, as an operator does; pip writes beside the sources."""
    folder, source = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, source / name)
    command = (sys.executable, "-m", "pip", "wheel", "-q", "-w", folder, f"{source}[credentials]")
    if subprocess.run(command, check=False, timeout=300).returncode:
        pytest.skip("the agent's wheels cannot be made here: no package index is reached")
    return folder


@asynccontextmanager
async def host(folder: Path, name: str, key: Path) -> AsyncIterator[int]:
    """Run a machine with an sshd that accepts this key; return its port."""
    place = folder / name
    for own, where in OWN.items():
        (place / own).mkdir(parents=True)
        Path(where).mkdir(parents=True, exist_ok=True)
    new_key(place / "host-key")
    make_run_folder()
    (port,) = free_ports(1)
    path = f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin:/usr/sbin:/sbin"
    text = CONFIG.format(port=port, folder=place, key=key)
    text = text.replace("SetEnv HOME", f"SetEnv PATH={path} HOME")
    (place / "sshd_config").write_text(text)
    binds = "; ".join(f"mount --bind {place / own} {where}" for own, where in OWN.items())
    sshd = f"{SSHD} -D -e -f {place}/sshd_config"
    inside = f"hostname {name}; mount -t proc proc /proc; {binds}; exec {sshd}"
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", inside),
        stderr=asyncio.subprocess.DEVNULL,
    )

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await eventually(listens)
        yield port
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        for where in OWN.values():
            with suppress(OSError):  # others' files may be in it
                Path(where).rmdir()


@asynccontextmanager
async def served_fleet(place: Path) -> AsyncIterator[FirstFleet]:
    """Serve a fleet with a pool that machines join, over an encrypted bus."""
    fleet, (port, install) = FirstFleet(place), free_ports(2)
    agent = f"{{bus_url: 'tls://127.0.0.1:{port}', install_port: {install}}}"
    fleet.config.write_text(f"data_dir: {place / 'data'}\nagent: {agent}{POOLS}")
    async with serving(place, fleet.config) as services:
        await services.says(READY)
        yield fleet


@pytest.mark.skipif(os.geteuid() != 0, reason="own mount namespaces need root")
@pytest.mark.skipif(SSHD is None or not shutil.which("unshare"), reason="needs sshd and unshare")
async def test_machines_join_and_leave_over_ssh(tmp_path: Path, wheels: Path) -> None:
    """A machine that cannot be reached does not keep the others; again is harmless."""
    key = tmp_path / "id"
    new_key(key)
    closed = free_ports(1)[0]
    async with (
        served_fleet(tmp_path) as fleet,
        host(tmp_path, "gpu-01", key) as one,
        host(tmp_path, "gpu-02", key) as two,
    ):
        ports = {"gpu-01": one, "gpu-02": two, "gpu-03": closed}
        machines = [f"{name}=root@127.0.0.1:{port}" for name, port in ports.items()]
        more = ("--key", str(key), "--config", str(fleet.config))

        async def run(*words: str) -> tuple[int, str]:
            status, out, err = await navarch(*words, *more)
            return status, out + err

        stranger = tmp_path / "stranger"
        new_key(stranger)
        config = ("--config", str(fleet.config))
        refused = await navarch("join", machines[0], "--key", str(stranger), *config)
        assert "add the public key to its authorized_keys" in "".join(map(str, refused))
        status, said = await run("join", *machines[:2])
        assert status
        assert said.count("it has no agent, and no wheels are kept: add --wheels FOLDER") == 2
        planned = await run("join", "--dry-run", "--wheels", str(wheels), *machines[:2])
        assert planned[0] == 0
        assert planned[1].count("would install the agent in /opt/navarch, join, start") == 2
        assert "There is no token." in await fleet.says("join", "--list")

        await _begin_and_kill(("join", "--wheels", str(wheels), machines[0], *more), tmp_path)
        status, said = await run("join", "--wheels", str(wheels), *machines)
        assert status
        assert said.count("joined pool gpu; its agent runs supervised") == 2, said
        assert "FAIL  gpu-03" in said
        assert "1 of 3 machines failed" in said
        for name in ("gpu-01", "gpu-02"):
            await eventually(lambda name=name: _is_healthy(fleet, name))
        status, said = await run("join", *machines[:2])
        assert (status, said.count("had joined already")) == (0, 2), said

        status, said = await run("join", f"gpu-04=root@127.0.0.1:{two}")
        assert status
        assert "it is gpu/gpu-02 already" in said
        pins = tmp_path / "data" / "ssh" / "join.known_hosts"
        pinned = pins.read_text()
        pins.write_text("".join(f"{line}\n" for line in _exchanged(pinned.splitlines())))
        status, said = await run("join", *machines[:2])
        assert status
        assert said.count("it shows another host key than at first") == 2, said
        pins.write_text(pinned)
        status, said = await run("leave", "gpu-01", "--ssh", f"root@127.0.0.1:{one}")
        assert status == 0, said
        left = [each for own in OWN for each in (tmp_path / "gpu-01" / own).iterdir()]
        assert [] == left
        assert await fleet.health("gpu-01") == ""
        assert "joined pool gpu" in (await run("join", "--wheels", str(wheels), machines[0]))[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="own mount namespaces need root")
@pytest.mark.skipif(SSHD is None or not shutil.which("unshare"), reason="needs sshd and unshare")
async def test_agents_are_upgraded_in_waves(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release whose agent does not come back reaches one machine; the next ends it whole."""
    monkeypatch.setattr(upgrade_steps, "BACK_SECONDS", 20)
    key = tmp_path / "id"
    new_key(key)
    broken = another_release(wheels, tmp_path / "broken", "raise SystemExit(1)\n")
    repaired = another_release(wheels, tmp_path / "repaired", "# repaired\n")
    async with (
        served_fleet(tmp_path) as fleet,
        host(tmp_path, "gpu-01", key) as one,
        host(tmp_path, "gpu-02", key) as two,
        host(tmp_path, "gpu-03", key) as three,
    ):
        ports = {"gpu-01": one, "gpu-02": two}
        machines = [f"{name}=root@127.0.0.1:{port}" for name, port in ports.items()]
        more = ("--key", str(key), "--config", str(fleet.config))

        async def run(*words: str) -> tuple[int, str]:
            status, out, err = await navarch("join", *words, *more)
            return status, out + err

        status, said = await run("--upgrade", *machines)
        assert (status != 0, "no wheels are kept: add --wheels FOLDER" in said) == (True, True)
        status, said = await run("--wheels", str(wheels), *machines)
        assert status == 0, said
        status, said = await run("--upgrade", *machines, f"gpu-03=root@127.0.0.1:{three}")
        assert said.count("is at 0.1.0+") == 2, said
        assert "FAIL  gpu-03  it has joined no pool" in said

        status, said = await run("--upgrade", "--wheels", str(broken), *machines)
        assert status
        assert "FAIL  gpu-01  its agent has not come back" in said, said
        assert "FAIL  gpu-02  not begun" in said
        again = ("join", "--upgrade", "--wheels", str(repaired), *machines, *more)
        await _begin_and_kill(again, tmp_path)
        planned = (await run("--upgrade", "--dry-run", *machines))[1]
        assert planned.count("would be upgraded from") == 2, planned
        status, said = await run("--upgrade", *machines, "-l", "pool=gpu")
        assert (status, said.count("upgraded from")) == (0, 2), said
        for name in ports:
            await eventually(lambda name=name: _is_healthy(fleet, name))
        status, said = await run("--upgrade", *machines)
        assert (status, said.count("already")) == (0, 2), said


@pytest.mark.skipif(os.geteuid() != 0, reason="own mount namespaces need root")
@pytest.mark.skipif(SSHD is None or not shutil.which("unshare"), reason="needs sshd and unshare")
async def test_the_printed_line_makes_a_machine_a_node(tmp_path: Path, wheels: Path) -> None:
    """The machine has Python and the token alone; the line again is harmless, elsewhere refused."""
    key = tmp_path / "id"
    new_key(key)
    async with (
        served_fleet(tmp_path) as fleet,
        host(tmp_path, "gpu-01", key) as one,
        host(tmp_path, "gpu-02", key) as two,
    ):

        async def run_line(port: int, line: str) -> tuple[int, str]:
            words = ("-i", key, "-p", str(port), "-o", "StrictHostKeyChecking=no")
            process = await asyncio.create_subprocess_exec(
                *("ssh", *words, "-o", f"UserKnownHostsFile={tmp_path}/hosts", "root@127.0.0.1"),
                "bash -s",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await process.communicate(line.encode())
            return process.returncode or 0, said.decode()

        assert "| navarch-agent join" in await fleet.says("join", "--print", "gpu-01")
        line = await fleet.says("join", "--print", "gpu-01", "--wheels", str(wheels))
        status, said = await run_line(one, line)
        assert (status, "joined as gpu-01 of pool gpu" in said) == (0, True), said
        await eventually(lambda: _is_healthy(fleet, "gpu-01"))
        status, said = await run_line(one, line)
        assert (status, "had joined already" in said) == (0, True), said
        status, said = await run_line(two, line)
        assert (status != 0, "the token was used already" in said) == (True, True), said
        assert "used " in await fleet.says("join", "--list")

        second = await fleet.says("join", "--print", "gpu-02")
        status, said = await run_line(one, second)
        assert "this machine is another node already" in said
        await fleet.says("join", "--revoke", "gpu-02")
        (tmp_path / "gpu-02" / "opt" / "navarch" / "release").unlink(missing_ok=True)
        status, said = await run_line(two, second)
        assert (status != 0, "navarch: the token was revoked" in said) == (True, True), said


def another_release(wheels: Path, folder: Path, more: str) -> Path:
    """Make wheels of which the agent's begins with other lines."""
    shutil.copytree(wheels, folder)
    [own] = folder.glob("navarch-*.whl")
    with ZipFile(own) as before:
        files = {each: before.read(each) for each in before.namelist()}
    files["navarch/agent/service.py"] = more.encode() + files["navarch/agent/service.py"]
    with ZipFile(own, "w") as after:
        for name, data in files.items():
            after.writestr(name, data)
    return folder


async def _begin_and_kill(words: tuple[str, ...], place: Path) -> None:
    """Kill a join while it installs: what it has begun on the machine goes on."""
    begun = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *words), env=environment(), cwd=ROOT
    )
    unfinished = place / "gpu-01" / "opt" / "navarch.unfinished"

    async def installs() -> bool:
        return unfinished.exists()

    await eventually(installs)
    begun.kill()
    await begun.wait()


async def _is_healthy(fleet: FirstFleet, name: str) -> bool:
    return await fleet.health(name) == "healthy"


def _exchanged(pins: list[str]) -> list[str]:
    """Give each of two machines the other's key."""
    places, keys = zip(*(each.split(" ", 1) for each in pins), strict=True)
    return [f"{place} {key}" for place, key in zip(places, reversed(keys), strict=True)]
