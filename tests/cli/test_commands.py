"""`navarch` as operators and scripts run it: a process, its output, its exit code."""

import asyncio
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.main import get_command

from schemas import subjects
from schemas.fleet_queries import CurrentFailure
from schemas.settings import NatsSettings
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.app import app
from services.cli.command_table import COMMANDS, GROUPS, NAMES, command_line
from services.cli.commands.view_commands import FAILING
from services.cli.fleet_discovery import ServeState, find_bus, started_ticks
from services.primitives.errors import NavarchError
from tests.support import inprocess

ROOT = Path(__file__).resolve().parents[2]


async def navarch(*arguments: str, url: str = "", cwd: Path = ROOT) -> tuple[int, str, str]:
    """Run the command; return its exit code, stdout and stderr."""
    more = {"NAVARCH_NATS_URL": url} if url else {}
    return await inprocess.navarch(*arguments, cwd=cwd, **more)


JQ_LINES = [
    (("list",), '.[] | select(.health == "unhealthy") | .id', "training-2\n"),
    (("get", "training-2"), ".health", "unhealthy\n"),
    (
        ("get", "training-1"),
        "{node: .id, health: .health, gpus: .gpu_count}",
        '{\n  "node": "training-1",\n  "health": "healthy",\n  "gpus": 8\n}\n',
    ),
    (("get", "training-2"), ".health_events | length", "1\n"),
]


async def test_json_has_the_documented_fields(manager: NatsBus, server: EmbeddedServer) -> None:
    """`list` is an array, `get` an object, with the names that scripts use."""
    assert manager.connected
    listed, got = await asyncio.gather(
        navarch("list", "--output", "json", url=server.url),
        navarch("get", "training-2", "--output", "json", url=server.url),
    )
    nodes, node = json.loads(listed[1]), json.loads(got[1])
    assert [each["id"] for each in nodes if each["health"] == "unhealthy"] == ["training-2"]
    assert (node["health"], node["gpu_count"]) == ("unhealthy", 8)
    assert [each["code"] for each in node["health_events"]] == [79]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
async def test_the_documented_jq_lines_work_as_written(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """The programs of the Slurm guide, run by jq."""
    assert manager.connected
    for arguments, program, expected in JQ_LINES:
        code, out, _ = await navarch(*arguments, "--output", "json", url=server.url)
        jq = await asyncio.create_subprocess_exec(
            *("jq", "-r", program),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        found, _ = await jq.communicate(out.encode())
        assert (code, found.decode()) == (0, expected)


async def test_every_table_names_what_is_wrong(manager: NatsBus, server: EmbeddedServer) -> None:
    """Tables show the unhealthy node, its fault and the open saga."""
    assert manager.connected
    tables = await asyncio.gather(
        navarch("status", url=server.url),
        navarch("list", url=server.url),
        navarch("get", "training-2", url=server.url),
    )
    assert [code for code, _, _ in tables] == [0, 0, 0]
    status, listed, got = (out for _, out, _ in tables)
    assert "replace-training-2-1" in status
    assert "cordoned, saga replace-training-2-1" in listed
    assert "GPU has fallen off the bus." in got


async def test_status_warns_of_what_fails_and_exits_with_3(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """The warning has the command that resolves it; scripts need not read the text."""
    failure = CurrentFailure(
        failure="store-unwritable",
        about="nats-server",
        reason="it stores nothing",
        remedy="free space, then restart nats-server",
    )

    async def failing(_: bytes, __: Mapping[str, str]) -> bytes:
        return msgspec.json.encode([failure])

    await manager.answer(subjects.query("failures-notifier"), failing)
    code, out, _ = await navarch("status", url=server.url)
    assert code == FAILING
    assert "warning: nats-server: it stores nothing; free space, then restart nats-server" in out
    code, out, _ = await navarch("status", "-o", "json", url=server.url)
    assert (code, msgspec.json.decode(out)["failures"]) == (FAILING, [msgspec.to_builtins(failure)])


ASKED = [
    (("cordon", "training-1", "--reason", "test"), 0, "cordon training-1, saga cordon-training-1"),
    (("scale", "training", "2"), 0, "3 -> 2 nodes"),
    (("scale", "training", "9"), 1, "navarch: refused (above-maximum): 9 is above max_nodes 4\n"),
    (("drain", "training-2"), 1, "navarch: refused (saga-open): replace-training-2-1 is under way"),
    (("replace", "n9"), 1, "navarch: there is no node 'n9'; see navarch list\n"),
    (("scale", "Training!", "2"), 1, "there is no pool 'Training!'; there is: training"),
]


async def test_a_request_is_answered_or_refused_in_one_line(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """Accepted: a line on stdout and 0. Refused or wrong: one line on stderr and 1."""
    assert manager.connected
    runs = await asyncio.gather(*(navarch(*arguments, url=server.url) for arguments, _, _ in ASKED))
    for (_, expected, text), (code, out, err) in zip(ASKED, runs, strict=True):
        assert code == expected, (out, err)
        printed = err if expected else out
        assert text in printed
        assert printed.count("\n") == 1


async def test_errors_are_sentences_and_usage_errors_exit_with_two(tmp_path: Path) -> None:
    """A missing bus, a wrong time and an unknown command are errors without a traceback."""
    no_bus, wrong_time, unknown = await asyncio.gather(
        navarch("list", cwd=tmp_path),
        navarch("events", "--since", "yesterday"),
        navarch("frobnicate"),
    )
    assert [no_bus[0], wrong_time[0], unknown[0]] == [1, 2, 2]
    assert "run `navarch serve` there, or name a bus with --nats-url" in no_bus[2]
    assert "neither a duration (10m, 2h) nor a time" in wrong_time[2]
    assert "Traceback" not in no_bus[2] + wrong_time[2] + unknown[2]


def test_a_served_fleet_is_found_by_its_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a running serve names the bus; that of an ended one is ignored."""
    monkeypatch.delenv("NAVARCH_NATS_URL", raising=False)
    config = tmp_path / "navarch.yaml"
    config.write_text(f"data_dir: {tmp_path}\n")
    running = ServeState(nats_url="nats://127.0.0.1:9", pid=os.getpid())
    (tmp_path / "serve.json").write_bytes(json.dumps({**_fields(running)}).encode())
    assert find_bus("", config) == NatsSettings(url="nats://127.0.0.1:9")
    assert find_bus("nats://other:1", config) == NatsSettings(url="nats://other:1")
    (tmp_path / "serve.json").write_bytes(json.dumps({**_fields(running), "pid": 2**30}).encode())
    with pytest.raises(NavarchError, match="no fleet is served"):
        find_bus("", config)


def test_a_bus_that_the_configuration_names_is_found_where_none_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host of a control plane has one variable for the configuration and one for a login."""
    monkeypatch.delenv("NAVARCH_NATS_URL", raising=False)
    monkeypatch.setenv("NAVARCH_NATS_CREDS_FILE", "/home/ada/ada.creds")
    config = tmp_path / "navarch.yaml"
    config.write_text(
        f"data_dir: {tmp_path}\nnats: {{url: 'tls://n1:4222,tls://n2:4222', tls_ca_file: ca.pem}}\n"
    )
    found = find_bus("", config)
    assert found.url == "tls://n1:4222,tls://n2:4222"
    assert found.creds_file == "/home/ada/ada.creds"
    assert found.tls_ca_file.endswith("ca.pem")
    running = ServeState(nats_url="nats://127.0.0.1:9", pid=os.getpid())
    (tmp_path / "serve.json").write_bytes(json.dumps({**_fields(running)}).encode())
    assert find_bus("", config).url == "nats://127.0.0.1:9"


def _fields(running: ServeState) -> dict[str, object]:
    return {"nats_url": running.nats_url, "pid": running.pid}


def test_a_process_is_distinguished_from_a_later_one_with_its_pid() -> None:
    """A process has one start time; an unused PID has none."""
    assert started_ticks(os.getpid()) == started_ticks(os.getpid())
    assert started_ticks(2**30) is None


async def test_help_shows_each_commands_purpose_in_full() -> None:
    """No line of a command list is cut in a terminal of 80 columns."""
    groups = [("--help",), *((each.name, "--help") for each in app.registered_groups if each.name)]
    runs = await asyncio.gather(*(navarch(*each) for each in groups))
    assert len(runs) >= 4
    lines = [line for _, out, _ in runs for line in out.splitlines()]
    assert [each for each in lines if each.endswith("...") and "ARGS" not in each] == []


async def test_every_command_has_its_section_in_help() -> None:
    """`-h` is `--help`, and lists nothing under Other."""
    code, out, _ = await navarch("-h")
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert (code, "Other:" in out) == (0, False)
    assert sorted(each for each in listed if each in NAMES) == sorted(NAMES)


async def test_an_unknown_pool_is_an_error(manager: NatsBus, server: EmbeddedServer) -> None:
    """An empty list would look like a pool without events."""
    assert manager.connected
    asked = [("list",), ("events", "--since", "1h"), ("report",), ("saga", "list")]
    runs = await asyncio.gather(
        *(navarch(*each, "--pool", "nope", url=server.url) for each in asked)
    )
    assert [(1, "", "navarch: there is no pool 'nope'; there is: training\n")] * 4 == runs


async def test_version_prints_the_version() -> None:
    """Support asks for it first."""
    code, out, _ = await navarch("--version")
    assert (code, out) == (0, f"navarch {importlib.metadata.version('navarch')}\n")


def test_a_command_loads_no_service() -> None:
    """Each command waits for its imports: most of its time, and more than a service's."""
    heavy = {
        *("cryptography", "httpx", "nats", "opentelemetry", "rich", "uvicorn"),
        *(f"services.{name}.service" for name in ("health_monitor", "pool_manager", "provisioner")),
        *("services.pool_manager.planner", "services.fleet_client.why_text"),
        "services.settings.settings_file",
    }
    code = (
        "import sys; from services.cli.command_table import command_line; command_line('list'); "
        f"print(*sorted({heavy} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_a_command_is_the_same_alone_and_among_all() -> None:
    """The help of each, which names its arguments and options; another word gets all commands."""

    def helps(of: Any, names: Iterable[str]) -> dict[str, str]:
        group = get_command(of)
        context = group.make_context("navarch", ["--help"], resilient_parsing=True)
        found = {name: group.get_command(context, name) for name in names}
        return {name: each.get_help(context) for name, each in found.items()}

    names = (*GROUPS, *COMMANDS)
    alone = {
        name: text for name in names for name, text in helps(command_line(name), [name]).items()
    }

    assert helps(app, names) == alone
    assert set(names) == set(NAMES)
    assert len(get_command(command_line("list")).commands) == 1
    assert len(get_command(command_line("lst")).commands) == len(names)
