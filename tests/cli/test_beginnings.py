"""Every command that takes a node, pool, saga or alert takes the beginning of its name."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from typer.main import get_command

from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.app import app
from services.cli.fleet_names import ALERT, ANY, NODE, POOL, Kind, complete, named
from services.primitives.errors import NavarchError
from tests.cli.begun_names import AMBIGUOUS, BEGUN
from tests.cli.test_http_commands import Place, fill

NAMES: Final = frozenset({"pool", "node", "nodes", "saga", "key", "name"})
"""Names of parameters that name a thing of the fleet."""
NEW: Final = (
    *("up name", "scale nodes", "gateway", "nats-config", "nats-context", "plugins", "simulator"),
    *("init pool", "join nodes", "join key", "leave key"),
)
"""Commands, or beginnings of them, whose names are not of a running fleet, or of a new thing."""


def parameters(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command's parameters."""
    for each in command.params:
        yield " ".join(path), each
    for name, inside in getattr(command, "commands", {}).items():
        yield from parameters(inside, (*path, name))


def test_every_name_of_a_fleet_is_completed_by_the_shell() -> None:
    """A parameter that names a thing of the fleet offers the names that there are."""
    missing = [
        f"{command} {each.name}"
        for command, each in parameters(get_command(app))
        if each.name in NAMES
        and each._custom_shell_complete is None
        and not f"{command} {each.name}".startswith(NEW)
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "kind", "found"),
    [
        ("tr", POOL, "training"),
        ("a", ALERT, "several open alerts: a/1, a/2"),
        ("a/1", ALERT, "a/1"),
        ("z", ALERT, "there is no open alert 'z'; see navarch alerts list"),
        ("", NODE, "there is no node ''; see navarch list"),
    ],
)
def test_a_beginning_is_completed_or_its_candidates_are_listed(
    text: str, kind: Kind, found: str
) -> None:
    """The errors name the kind of thing that was meant."""
    names = ("training", "a/1", "a/2")
    if found in names:
        assert complete(text, names, kind) == found
    else:
        with pytest.raises(NavarchError, match=found):
            complete(text, names, kind)


async def test_the_first_answer_counts_where_no_names_are_to_be_had() -> None:
    """A caller who may not list names hears why its order was refused, not why no name came."""

    async def ask(name: str) -> str:
        raise NavarchError(f"{name} does not wait for work")

    async def names() -> list[str]:
        raise NavarchError("this needs the role operator")

    with pytest.raises(NavarchError, match="n1 does not wait for work"):
        await named("n1", ask, names, ANY)


@pytest.mark.slow
async def test_a_beginning_is_as_good_as_the_name(
    manager: NatsBus, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command prints the same for both; an ambiguous beginning lists what it may be."""
    command = get_command(app)
    monkeypatch.setattr("services.cli.command_table.command_line", lambda *_: command)
    await fill(manager)
    place = Place(server.url, "")
    for begun, whole in BEGUN.items():
        assert await place.over_bus(begun) == await place.over_bus(whole), begun
    for line, said in AMBIGUOUS.items():
        code, out, err = await place.over_bus(line)
        assert (code, out, said in err) == (1, "", True), (line, err)
