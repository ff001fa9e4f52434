"""No client takes the files that nats-server needs for what it stores, and for the services."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import nats.errors
import pytest
import yaml
from nats.aio.client import Client

from schemas import subjects
from schemas.permissions import CONNECTIONS_MAX
from services.bus.nats.connection_options import credentials
from services.bus.nats.file_limits import (
    FILES_MAX,
    FILES_MIN,
    FILES_WANTED,
    SERVICE_CONNECTIONS,
    STORE_FILES,
    file_shares,
    low_limit,
    stated_files,
)
from services.bus.nats.nats_bus import NatsBus
from services.cli.doctor_checks import files_finding
from services.cli.nats_config_files import ACCOUNTS, write, write_accounts
from services.runtime.process_http import allow_open_files
from tests.house.modules import ROOT
from tests.support.secured import NOW, WHERE, Secured, nats_config, serving_secured

AGENT = "agent:training/n1"
TRIED = 1_000
AT_ONCE = 50


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Secured]:
    """Provide a server that may open no more than 1,024 files."""
    if shutil.which("prlimit") is None:
        pytest.fail("prlimit is part of util-linux")
    allow_open_files()
    directory = nats_config(tmp_path / "config")
    write(directory, "tests", NOW, **WHERE, files=FILES_MIN)
    through = ("prlimit", f"--nofile={FILES_MIN}:{FILES_MIN}")
    async with serving_secured(directory, tmp_path / "nats", through=through) as found:
        yield found


async def flood(small: Secured) -> list[Client]:
    """Open as many connections with one agent's credentials as the server takes."""
    options = small.options(AGENT)
    opened: list[Client] = []

    async def ignore(_: Exception) -> None:
        return

    async def one() -> None:
        client = Client()
        try:
            await client.connect(
                small.url,
                error_cb=ignore,
                allow_reconnect=False,
                connect_timeout=30,
                inbox_prefix=options.inbox_prefix,
                **credentials(options),
            )
        except (nats.errors.Error, OSError, asyncio.IncompleteReadError):
            await client.close()
            return
        opened.append(client)

    for _ in range(TRIED // AT_ONCE):
        await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    return [each for each in opened if each.is_connected]


def files_open(small: Secured) -> int:
    """Return how many files the server has open."""
    return sum(1 for _ in Path(f"/proc/{small.server.pid}/fd").iterdir())


async def test_one_agents_connections_leave_the_store_and_services_theirs(small: Secured) -> None:
    """A thousand connections are tried: the account's limit holds, and services store."""
    opened = await flood(small)
    shares = file_shares(FILES_MIN)
    assert len(opened) == shares.agents
    assert files_open(small) <= FILES_MIN - STORE_FILES // 2
    services = [
        await NatsBus.connect(small.options("health-monitor"), seconds_max=20) for _ in range(32)
    ]
    for number, bus in enumerate(services):
        await bus.publish(
            subjects.node_event("training", "n1", "fault"), b"{}", msg_id=f"stored-{number}"
        )
    for each in (*services, *opened):
        await each.close()


async def test_connections_without_credentials_leave_the_store_its_files(small: Secured) -> None:
    """Silent strangers end at the limit of the server, which stores meanwhile."""
    bus = await NatsBus.connect(small.options("health-monitor"), seconds_max=20)
    host, _, port = small.url.removeprefix("nats://").partition(":")
    strangers = [await asyncio.open_connection(host, int(port)) for _ in range(TRIED)]
    assert files_open(small) <= FILES_MIN - STORE_FILES // 2
    await bus.publish(subjects.node_event("training", "n1", "fault"), b"{}", msg_id="stored")
    await bus.close()
    for _, writer in strangers:
        writer.close()
    await asyncio.gather(*(each.wait_closed() for _, each in strangers), return_exceptions=True)


@pytest.mark.parametrize("files", [0, FILES_MIN, 4_096, 16_384, FILES_WANTED, FILES_MAX])
def test_the_shares_leave_a_reserve(files: int) -> None:
    """The shares of accounts leave room for services, and all together for the store."""
    shares, most = file_shares(files), max(files, FILES_MIN)
    assert shares.agents + shares.users + SERVICE_CONNECTIONS <= shares.server
    assert shares.server + STORE_FILES <= most
    assert min(shares.agents, shares.users) > 100
    assert bool(low_limit(most)) == (most < FILES_WANTED)


def test_with_enough_files_the_limits_are_those_of_the_largest_fleet(tmp_path: Path) -> None:
    """The limit of files is kept when accounts are written again for another reason."""
    assert file_shares(FILES_WANTED).accounts == CONNECTIONS_MAX
    write_accounts(tmp_path, "tests", NOW, 4_096)
    write_accounts(tmp_path, "tests", NOW)
    text = (tmp_path / ACCOUNTS).read_text("utf-8")
    assert stated_files(text) == 4_096
    assert "max_connections: 3840" in text
    write_accounts(tmp_path, "tests", NOW, FILES_WANTED)
    assert "max_connections" not in (tmp_path / ACCOUNTS).read_text("utf-8")


@pytest.mark.parametrize(
    ("files", "outcome"), [(512, "failing"), (4_096, "warning"), (FILES_WANTED, "ok")]
)
def test_doctor_names_a_low_limit(files: int, outcome: str) -> None:
    """The remedy says how many agents fit, and where the limit is raised."""
    found = files_finding(files)
    assert found.outcome == outcome
    assert ("LimitNOFILE" in found.remedy) == (outcome != "ok")


@pytest.mark.parametrize(
    ("stated", "most", "code"),
    [
        (FILES_WANTED, 16_384, 1),
        (16_384, 16_384, 0),
        (4_096, 16_384, 0),
        (4_096, 4_095, 1),
    ],
)
def test_a_pod_whose_server_may_open_too_few_files_does_not_start(
    tmp_path: Path, stated: int, most: int, code: int
) -> None:
    """Kubernetes has no setting for it: what runs before the server says what to do."""
    directory = nats_config(tmp_path / "config")
    write(directory, "tests", NOW, **WHERE, files=stated)
    values = yaml.safe_load((ROOT / "deploy/helm/nats-values.yaml").read_text())
    (before,) = values["podTemplate"]["merge"]["spec"]["initContainers"]
    assert before["image"].endswith(values["container"]["image"]["tag"])
    shell, option, script = before["command"]
    script = script.replace("/etc/navarch/bus", str(directory))
    limited = ("prlimit", f"--nofile={most}:{most}", shell, option, script)
    done = subprocess.run(limited, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert ("LimitNOFILE=" in done.stdout) == bool(code)
