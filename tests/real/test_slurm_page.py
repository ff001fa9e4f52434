"""The commands, scripts and slurm.conf lines of docs/slurm.md, run on a real Slurm."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from schemas.settings import NOTIFIER_PLUGINS, PluginSettings
from services.notifier.workload.slurm_notifier import SlurmNotifier
from services.primitives.clock import SystemClock
from services.settings.plugin_loader import make_plugin
from services.settings.settings_file import parse_settings
from tests.crash.rig import Rig, Shape
from tests.real.slurm_site import SlurmSite, missing, slurm_site
from tests.real.test_slurm import drained, order
from tests.support.inprocess import eventually

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/slurm.md"
TRAIN = """
import pathlib, time
here = pathlib.Path()
(here / "training").touch()
while not (here / "save-now").exists():
    time.sleep(0.1)
time.sleep(2)  # as long as it takes to write a checkpoint
(here / "saved").touch()
"""
POOL = {"provider": "simulated", "instance_type": "fake-8x-h100", "min_nodes": 0, "max_nodes": 64}


@pytest.fixture(autouse=True)
def slurm_here() -> None:
    """Skip without Slurm; checked only when these tests run."""
    if reason := missing():
        pytest.skip(reason)


def blocks(language: str) -> list[str]:
    """Return the page's blocks of a language, in order; plain text has the empty language."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text) for _, of, text in found if of == language]


def block(language: str, words: str) -> str:
    """The only one of them that has these words."""
    [found] = [each for each in blocks(language) if words in each]
    return found


def program(folder: Path, name: str, script: str) -> None:
    """Put a program first on PATH."""
    file = folder / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def run(folder: Path, script: str) -> str:
    """Run a block as an administrator, whose /etc is in a folder."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace("/etc/", f"{folder}/etc/")],
        cwd=folder,
        env=os.environ
        | {
            "PATH": f"{folder}/bin:{os.environ['PATH']}:/usr/sbin",
            "SLURM_CONF": str(folder / "slurm.conf"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    return done.stdout + done.stderr


def lines(words: str) -> str:
    """Lines of slurm.conf, for partitions of the test's own names."""
    return block("", words).replace("training", "research")


def test_the_configurations_are_accepted() -> None:
    """A configuration of the page is accepted with what a pool needs besides."""
    for text in blocks("yaml"):
        whole = yaml.safe_load(text)
        whole["providers"] = {"simulated": {"type": "local"}}
        whole["pools"] = {
            name: POOL | {"ssh_private_key_path": "key"} | given
            for name, given in whole.get("pools", {}).items()
        }
        parse_settings("navarch.yaml", json.dumps(whole), {})


def test_the_agent_says_what_the_page_shows(tmp_path: Path) -> None:
    """The agent reads the copy of the node's record, and prints what the page shows."""
    found = {"health": "unhealthy", "reason": "XID 79: the GPU fell off the bus (GPU 3)"}
    (tmp_path / "health.json").write_text(json.dumps(found | {"read_at": time.time()}))
    shown = block("", "unhealthy: XID 79")
    environment = f"NAVARCH_STATE_DIR={tmp_path} PYTHONPATH={ROOT}"
    agent = f'{environment} exec {sys.executable} -m agent.command_line "$@"'
    program(tmp_path, "navarch-agent", agent)
    healthy = block("bash", "navarch-agent healthy").strip()
    assert run(tmp_path, f"{healthy} || test $? = 1") == shown


async def test_names_are_resumed_and_suspended_by_hand(tmp_path: Path) -> None:
    """Commands resume and suspend names as Slurm's programs do."""
    pool = {"workload_names": "training-[001-003]", "max_nodes": 3}
    async with Rig(tmp_path, Shape(nodes=0, pool=pool)) as rig:
        script = f'PYTHONPATH={ROOT} exec {sys.executable} -m services.cli "$@"'
        program(tmp_path, "navarch", f"export NAVARCH_NATS_URL={rig.server.url}\n{script}")
        commands = block("bash", "navarch slurm resume")
        said = await asyncio.to_thread(run, tmp_path, commands)
        assert re.findall(r"\d of \d names changed", said) == [
            "3 of 3 names changed",
            "1 of 1 names changed",
        ]


async def test_the_page_connects_a_site(public_folder: Path) -> None:
    """Commands and token; a node that registers itself; the notifier; names that Slurm resumes."""
    key = public_folder / "jwt.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    extra = "\n".join(
        [
            f"AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={key}",
            lines("NodeSet=training"),
            block("", "State=CLOUD").replace("PartitionName=training", "PartitionName=cloud"),
        ]
    )
    async with slurm_site(("login1",), folder=public_folder, extra=extra) as site:
        (public_folder / "etc/navarch").mkdir(parents=True)
        program(public_folder, "apt-get", f'echo "$@" >> {public_folder}/installed')
        assert "UP" in run(public_folder, block("bash", "scontrol ping"))
        run(public_folder, block("bash", "scontrol token"))
        assert (public_folder / "etc/navarch/slurm.jwt").read_text().startswith("SLURM_JWT=ey")
        cloud = site.run("scontrol", "-o", "show", "partition", "cloud")
        assert " Nodes=training-[001-064] " in cloud
        assert " TotalNodes=64 " in cloud
        await register(site, public_folder)
        await drain(site, "node-1")
        installed = (public_folder / "installed").read_text().splitlines()
        assert installed == ["install slurm-client munge", "install -y slurmd munge"]


async def register(site: SlurmSite, folder: Path) -> None:
    """The setup commands of a new node write a unit, whose command registers it."""
    pools = yaml.safe_load(block("yaml", "slurmd -D -Z"))["pools"]
    (folder / "etc/systemd/system").mkdir(parents=True)
    program(folder, "systemctl", f'echo "$@" >> {folder}/systemctl')
    for command in pools["training"]["setup_commands"]:
        run(folder, command.replace("{{.NodeID}}", "node-1").replace("{{.Pool}}", "research"))
    assert "enable --now slurmd" in (folder / "systemctl").read_text()
    unit = (folder / "etc/systemd/system/slurmd.service.d/navarch.conf").read_text()
    start = shlex.split(unit.rpartition("ExecStart=")[2])
    await site.start_by_command("node-1", *start[1:])
    await site.until_state("node-1", "idle", "idle+dynamic_norm")
    assert site.run("sinfo", "-hp", "research", "-o", "%N %G") == "node-1 gpu:h100:8"


async def drain(site: SlurmSite, node: str) -> None:
    """Drain a node with the page's options, and compare the check and Slurm's reason."""
    options: dict[str, Any] = yaml.safe_load(block("yaml", "unknown_nodes"))["notifier"]["slurm"]
    settings = PluginSettings(type="slurm", options=options | {"conf": str(site.conf)})
    built_in = {"slurm": SlurmNotifier}
    notifier = make_plugin(NOTIFIER_PLUGINS, settings, None, built_in, clock=SystemClock())
    said = [f"ok    {each.what}" for each in await notifier.self_check() if each.passed]
    shown = block("", "notifier: slurm").splitlines()[1:4]
    assert said == [each.partition(":")[0] for each in shown]
    await notifier.drain(order(node))
    await drained(notifier, order(node).node)
    assert site.reason(node).startswith("navarch: ")


async def test_jobs_save_themselves_as_the_page_says(public_folder: Path) -> None:
    """A job that is asked saves before its script ends; one that announces is waited for."""
    async with slurm_site(("gpu1",), folder=public_folder) as site:
        notifier = SlurmNotifier(
            options=SlurmNotifier.Options(conf=str(site.conf)), clock=SystemClock()
        )
        (public_folder / "train.py").write_text(TRAIN)
        asked = block("", "trap ").replace("python ", f"{sys.executable} ")
        (public_folder / "job.sh").write_text(f"#!/bin/bash\n{asked}")
        options = ("-o", "/dev/null", "-D", str(public_folder), "-c1", "--mem=100", "--time=10")
        job = site.run("sbatch", "--parsable", *options, str(public_folder / "job.sh"))
        await appears(public_folder / "training")
        until = SystemClock().now() + timedelta(seconds=60)
        about = order("gpu1", "checkpoint")
        [work] = await notifier.checkpoint(msgspec.structs.replace(about, deadline=until))
        assert work.id == f"job {job}"
        await site.until_job(job, "COMPLETED", "")
        assert (public_folder / "saved").exists()

        announces = block("", "navarch-checkpoint-at")
        script = f"{announces}\ntouch {public_folder}/announced; sleep 300"
        job = await site.submit("-c1", "--mem=100", "--time=60", script=script)
        await appears(public_folder / "announced")
        [work] = await notifier.checkpoint(order("gpu1", "checkpoint"))
        assert work.checkpoint_at is not None
        ahead = work.checkpoint_at - SystemClock().now()
        assert timedelta(minutes=20) < ahead <= timedelta(minutes=30)


async def appears(file: Path) -> None:
    """Wait for a file of a job."""

    async def there() -> bool:
        return file.exists()

    await eventually(there, within_seconds=60, every=0.1)
