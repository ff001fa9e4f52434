"""A mistyped command, option, column or name is answered with the nearest one."""

import asyncio
import sys

import pytest

from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.fleet_names import NODE, complete
from services.primitives.errors import NavarchError
from tests.cli.test_commands import navarch
from tests.support.documented_commands import ROOT

MISTYPED = [
    (("statsu",), "Did you mean 'status'?"),
    (("saga", "lst"), "Did you mean 'list'?"),
    (("nats-config", "user", "ad"), "Did you mean 'add'?"),
    (("nats-confg",), "Did you mean 'nats-config'"),
    (("list", "--poool", "x"), "--pool"),
    (("events", "--folow"), "--follow"),
    (("drain", "n1", "--dryrun"), "--dry-run"),
    (("saga", "list", "--sortby", "age"), "--sort-by"),
    (("gateway", "token", "create", "ada", "--rol", "viewer"), "--role"),
    (("list", "-o", "jsn"), "'jsn' is none of table, wide, json"),
]


async def test_the_nearest_command_or_option_is_named() -> None:
    """Exit code 2, and no traceback."""
    runs = await asyncio.gather(*(navarch(*arguments) for arguments, _ in MISTYPED))
    for (arguments, said), (code, out, err) in zip(MISTYPED, runs, strict=True):
        assert (code, out, said in " ".join(err.split())) == (2, "", True), (arguments, err)


async def test_the_nearest_node_is_named(manager: NatsBus, server: EmbeddedServer) -> None:
    """A mistyped name does not begin any."""
    assert manager.connected
    code, out, err = await navarch("get", "trainnig-3", url=server.url)
    assert (code, out) == (1, "")
    assert "there is no node 'trainnig-3'; did you mean training-3? See navarch list" in err


async def test_a_closed_output_is_one_sentence() -> None:
    """A shell's `>&-` leaves no standard output; a pipe that is not read to its end is no error."""
    line = f"{sys.executable} -m services.cli version"
    closed, piped = await asyncio.gather(shell(f"{line} >&-"), shell(f"{line} | head -1"))
    assert closed == (1, "", "navarch: standard output is closed\n")
    assert (piped[0], piped[2]) == (0, "")


async def shell(line: str) -> tuple[int | None, str, str]:
    """Run a line of a shell; return its exit code, output and errors."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_shell(line, stdout=pipe, stderr=pipe, cwd=ROOT)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def test_a_name_like_no_other_has_no_nearest() -> None:
    """The number of another node is no mistyped one: the command that lists them is all."""
    for text in ("x", "training-9"):
        with pytest.raises(NavarchError, match=f"there is no node '{text}'; see navarch list"):
            complete(text, ("training-1", "training-2"), NODE)
