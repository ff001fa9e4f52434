"""Every command in a code block of README.md and docs is run by a test, here or in a named one.

Here they are run against a fleet of small services, with its names in place of the pages' ones.
"""

import asyncio
import io
import json
import os
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from typer.main import get_command

from agent.__main__ import _parser
from schemas import subjects
from schemas.log_excerpts import LogExcerpt
from schemas.messages import encode
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.cli import console
from services.cli.app import app
from services.cli.command_examples import EXAMPLES
from services.pool_manager.plugin_switches import PluginSwitches
from services.primitives.clock import SystemClock
from tests.cli.begun_names import OVER, SAGA
from tests.cli.test_http_commands import commands, fill, navarch
from tests.support.documented_commands import BLOCK, ROOT, Documented, documented
from tests.support.output_shapes import Shape, differences, heading, overlong, shape
from tests.support.secured import nats_config

RUN_BY_PAGE: Final = {
    "credentials.md": "tests/cli/test_credentials_page.py",
    "first-cloud.md": "tests/cli/test_first_cloud_run.py",
    "existing-slurm.md": "tests/real/test_slurm_adopted.py",
    "regions.md": "tests/cli/test_region_files.py",
}
"""Page -> the test that runs its commands."""
RUN_BY: Final = {
    "navarch demo": "tests/cli/test_demo.py",
    "navarch mcp": "tests/mcp_server/test_mcp_command.py",
    "navarch serve": "tests/cli/test_serve.py",
    "navarch init": "tests/cli/test_first_fleet.py",
    "navarch join": "tests/cli/test_first_fleet.py",
    "navarch leave": "tests/cli/test_first_fleet.py",
    "navarch doctor": "tests/cli/test_doctor.py",
    "navarch backup": "tests/cli/test_backup_commands.py",
    "navarch restore": "tests/cli/test_backup_commands.py",
    "navarch ssh": "tests/cli/test_ssh.py",
    "navarch alerts test": "tests/cli/test_alert_commands.py",
    "navarch config diff": "tests/cli/test_config_diff.py",
    "navarch config apply": "tests/cli/test_config_apply.py",
    "navarch nats-config certificate": "tests/cli/test_credentials_page.py",
    "navarch nats-config push": "tests/cli/test_credentials_page.py",
    "navarch nats-config region": "tests/cli/test_region_files.py",
    "navarch nats-config rotate": "tests/cli/test_credentials_page.py",
    "navarch plugins new": "tests/plugins/test_plugin_package.py",
    "navarch slurm resume": "tests/cli/test_slurm_power_commands.py",
    "navarch slurm suspend": "tests/cli/test_slurm_power_commands.py",
    "navarch simulator run": "tests/cli/test_scenarios.py",
    "navarch simulator validate": "tests/cli/test_scenarios.py",
    "navarch simulator interactive": "tests/cli/test_scenarios.py",
    "navarch simulator fleet": "tests/cli/test_simulated_fleet.py",
    "navarch simulator fuzz": "tests/simulator/test_fuzz_runner.py",
    "navarch-agent": "tests/real/test_debian_root.py",
    "navarch-agent diagnose": "tests/agent/test_diagnostics_runner.py",
    "navarch-agent enroll": "tests/agent/test_settings.py",
    "navarch-agent join": "tests/cli/test_first_fleet.py",
    "navarch-agent connected": "tests/agent/test_healthy_command.py",
    "navarch-agent healthy": "tests/agent/test_healthy_command.py",
    "navarch-agent inject": "tests/agent/test_operator_tools.py",
    "navarch-agent parse": "tests/agent/test_operator_tools.py",
}
"""Command -> the test that runs it, with the servers, files or hardware that it needs."""
NAMES: Final = (
    (re.compile(r"training-\d-(?:[0-9a-f]{4}|…)|\bNODE\b"), "training-1"),
    (re.compile(r"\b(?:replace|drain)-training-1-\d"), SAGA),
    (re.compile(r"^(?:first|my-cluster)$"), "training"),
    (re.compile(r"^NAME$"), "flux"),
    (re.compile(r"^gpu-01$"), "training-1"),
    # A shell expands it.
    (re.compile(r"^~/"), ""),
    (re.compile(r"^health/training/n1$"), "silence/training-1"),
    (re.compile(r"^GPU-0c0ffee0$"), "GPU-1"),
)
"""What the pages call nodes, sagas, pools, alerts and GPUs -> what the fleet here calls them."""
MORE: Final = {
    "navarch up": ("--yes", "--no-wait"),
    "navarch down": ("--yes", "--no-wait"),
    "navarch top": ("--once",),
    "navarch config set-credentials": ("--no-check",),
}
"""Command -> what is added, so that it asks no operator and no cloud, and ends."""
OTHERS: Final = {
    "navarch watch": {SAGA: OVER},
    "navarch sweep": {"training-1": "training-2"},
    "navarch evidence": {"training-1": "training-9", SAGA: OVER},
}
"""Command -> names that it knows in place of the usual: an orphan; a node that is gone."""
NEEDS_ATTENTION: Final = {"navarch status": 3, "navarch diagnose": 3}
"""Command -> the exit code with which it ends here, where the fleet has a failure."""
COPIED: Final = {"navarch incident"}
"""Commands whose output is a document, with lines as they are."""
CONFIGURATION: Final = """
data_dir: data
providers:
  aws: {type: aws, region: us-east-1}
  gcp: {type: gcp, project: my-project}
  lambda: {type: lambda}
"""
HELP: Final = "help"
TERMINAL: Final = 80
SHAPES: Final = Path(__file__).parent / "documented_shapes.json"
WRITES: Final = bool(os.environ.get("WRITE_SHAPES"))
"""`WRITE_SHAPES=1` has the test write the shapes, of a terminal of any width, to be committed."""
TABLE_COLUMNS_MIN: Final = 3
EVERY: Final = (
    *documented(),
    *(Documented(HELP, tuple(shlex.split(each))) for each in EXAMPLES.values()),
)
"""The commands of the pages, and the examples of every command's help."""
COMMAND: Final = get_command(app)
VARIABLES: Final = {"LAMBDA_API_KEY": "secret-key-of-a-provider", "EDITOR": "true"}


@cache
def parsed(words: tuple[str, ...]) -> str:
    """The command's name, as its own parser finds it; an error if it does not take the words."""
    program, *rest = words
    if program == "navarch-agent":
        options = _parser().parse_args([each for each in rest if each != "--help"])
        return f"{program} {options.command or ''}".rstrip()
    # Typer has its own copy of click, so its types are not click's.
    command: Any = COMMAND
    context: Any = None
    while True:
        context = command.make_context(program, [*rest], parent=context)
        if not hasattr(command, "resolve_command"):
            return str(context.command_path)
        left = [*context._protected_args, *context.args]
        program, command, rest = command.resolve_command(context, left)


def runs_here(each: Documented) -> bool:
    """Return whether no other test is named for it."""
    return each.page not in RUN_BY_PAGE and parsed(each.words) not in RUN_BY


@pytest.mark.parametrize("page", sorted({each.page for each in EVERY}))
def test_every_command_is_one_that_there_is(page: str) -> None:
    """The parser takes it: subcommands, options, and their values; and its files are there."""
    for each in EVERY:
        if each.page == page:
            assert parsed(each.words), each.line
            shipped = [word for word in each.words if word.startswith("config/")]
            assert all([*ROOT.glob(word)] for word in shipped), each.line


def test_the_help_of_every_command_has_an_example_of_it() -> None:
    """The parser takes it as that command, and every help ends with it."""
    names = set(commands(COMMAND))
    assert names == EXAMPLES.keys()
    for name, example in EXAMPLES.items():
        assert parsed(tuple(shlex.split(example))) == f"navarch {name}"
        command: Any = COMMAND
        for word in name.split():
            command = command.commands[word]
        assert command.epilog.endswith(example), name


def test_the_tests_that_are_named_run_these_commands() -> None:
    """None is named for a page or a command that is gone."""
    names = {f"navarch {each}" for each in commands(COMMAND)}
    for page, test in RUN_BY_PAGE.items():
        assert page in (ROOT / test).read_text(), (page, test)
    for name, test in RUN_BY.items():
        assert name in names or name.startswith("navarch-agent")
        word = name.rpartition(" ")[2]
        assert re.search(rf"\b{word}\b", (ROOT / test).read_text()), (name, test)


def translated(each: Documented, url: str) -> str:
    """Return the command with this fleet's names and the bus's address."""
    words = []
    for word in each.words[1:]:
        found = word
        for pattern, name in NAMES:
            found = pattern.sub(name, found)
        words.append(OTHERS.get(parsed(each.words), {}).get(found, found))
    if "--nats-url" in words:
        words[words.index("--nats-url") + 1] = url
    # What is waited for is decided by services that are not here: test_change_waits.py.
    words = [word for word in words if word != "--wait"]
    more = MORE.get(parsed(each.words), ())
    return shlex.join([*words, *more])


@pytest.fixture
async def fleet(manager: NatsBus, monkeypatch: pytest.MonkeyPatch) -> NatsBus:
    """Provide a filled bus with small services."""
    # Made from the functions once, and not for each command.
    monkeypatch.setattr("services.cli.command_table.command_line", lambda *_: COMMAND)
    await fill(manager)

    async def logs(_: bytes, __: Headers) -> bytes:
        return encode(LogExcerpt(source="pool-manager-4711", lines=()))

    await manager.answer(subjects.service_logs("pool-manager"), logs)
    await manager.serve("switches", "", PluginSwitches(manager, SystemClock()).endpoints())
    return manager


def furnish(place: Path) -> None:
    """Write what the pages' commands read: a configuration, a provider's key, the keys of a bus."""
    place.mkdir()
    (place / "config").symlink_to(ROOT / "config")
    for name in ("navarch.yaml", "new.yaml"):
        (place / name).write_text(CONFIGURATION)
    login = {"type": "authorized_user", "client_id": "a", "client_secret": "b"}
    (place / "sa.json").write_text(json.dumps(login | {"refresh_token": "c"}))
    vault = place / "vault"
    vault.write_text("#!/bin/sh\necho secret-key-of-a-provider\n")
    vault.chmod(0o755)
    nats_config(place / ".navarch/bus")


@pytest.mark.slow
async def test_the_other_commands_are_run(
    fleet: NatsBus, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends well, in the order of its page, in a directory of its own."""
    assert fleet.connected
    monkeypatch.setattr(console, "width", lambda: 0 if WRITES else TERMINAL)
    failed, too_long, shapes = [], [], dict[str, Shape]()
    pages = {each.page for each in EVERY if runs_here(each)}
    for page in sorted(pages):
        place = tmp_path / page
        furnish(place)
        monkeypatch.chdir(place)
        environment = {"NAVARCH_NATS_URL": server.url, "HOME": str(place), **VARIABLES}
        environment["NAVARCH_CONFIG"] = str(place / "navarch.yaml")
        environment["PATH"] = f"{place}:{os.environ['PATH']}"
        here = [each for each in EVERY if each.page == page and runs_here(each)]
        keys = [each.words[2] for each in here if each.words[1] == "nats-config"]
        if keys and keys[0] != "write":
            nats_config(place / "bus")
        for each in here:
            line = translated(each, server.url)
            monkeypatch.setattr("sys.stdin", io.StringIO("secret-key-of-a-provider\n"))
            outcome = await asyncio.to_thread(navarch, line, environment)
            printed = outcome[1].replace(str(place), "/")
            # Whether there is a sample that is new enough depends on how fast this test is.
            shapes[each.line] = () if parsed(each.words) == "navarch top" else shape(printed)
            if parsed(each.words) not in COPIED:
                too_long += [(each.line, one) for one in overlong(outcome[1], TERMINAL)]
            if outcome[0] != NEEDS_ATTENTION.get(parsed(each.words), 0):
                failed.append((page, line, outcome))
    assert failed == [], "\n".join(map(str, failed))
    if WRITES:
        SHAPES.write_text(
            msgspec.json.format(msgspec.json.encode(shapes), indent=1).decode() + "\n"
        )
    known = msgspec.json.decode(SHAPES.read_bytes(), type=dict[str, Shape])
    assert shapes.keys() == known.keys()
    other = {line: each for line, one in shapes.items() if (each := differences(one, known[line]))}
    assert other == {}
    assert WRITES or too_long == [], "\n".join(map(str, too_long))


def test_the_tables_on_the_pages_are_those_that_are_printed() -> None:
    """A table in a block of text has a heading that some command has, perhaps without columns."""
    printed = msgspec.json.decode(SHAPES.read_bytes(), type=dict[str, Shape])
    known = tuple(each for one in printed.values() for each in one)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for _, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            lines = [each for each in block.splitlines() if len(heading(each)) > TABLE_COLUMNS_MIN]
            shown = tuple(" | ".join(heading(each)) for each in lines)
            assert differences(shown, known) == [], page.name
