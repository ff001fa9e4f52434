"""A command selects nodes by beginnings of names, several names, and selectors."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from schemas import subjects
from schemas.messages import encode
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import PoolSpec
from schemas.topology import EVENTS, POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.bus_client import BusFleet
from services.cli.commands import view_commands
from services.cli.fleet_names import complete
from services.primitives.errors import NavarchError
from tests.support import inprocess

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("training-1", "training-10", "training-2", "inference-7")


async def navarch(*arguments: str, url: str) -> tuple[int, str, str]:
    """Run the command; return its exit code, stdout and stderr."""
    return await inprocess.navarch(*arguments, cwd=ROOT, NAVARCH_NATS_URL=url)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("training-1", "training-1"),
        ("training-10", "training-10"),
        ("inf", "inference-7"),
        ("training", "'training' is the beginning of several nodes: training-1, training-10, "),
        ("gone", "there is no node 'gone'"),
        ("", "there is no node ''"),
        ("7", "there is no node '7'"),
    ],
)
def test_a_name_is_completed_only_where_one_node_has_that_beginning(text: str, found: str) -> None:
    """A whole name goes before a longer one; an ambiguous beginning lists what it may be."""
    if found in NAMES:
        assert complete(text, NAMES) == found
    else:
        with pytest.raises(NavarchError, match=found):
            complete(text, NAMES)


async def test_a_beginning_names_the_node_in_every_command_about_one(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """`get` of three characters, and a request whose answer has the whole name."""
    assert manager.connected
    got, cordoned, several = await asyncio.gather(
        navarch("get", "training-3", "-o", "json", url=server.url),
        navarch("cordon", "training-3", url=server.url),
        navarch("get", "train", url=server.url),
    )
    assert json.loads(got[1])["id"] == "training-3"
    assert (cordoned[0], "training-3" in cordoned[1]) == (0, True)
    assert (several[0], "several nodes: training-1, training-2" in several[2]) == (1, True)


async def test_several_nodes_are_asked_about_and_a_refusal_keeps_no_other_back(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """The second of three is refused: the others are answered, and the exit code is 1."""
    assert manager.connected
    names = ("training-1", "training-2", "training-3", "training-1")
    code, out, err = await navarch("cordon", *names, "-o", "json", url=server.url)
    assert (code, [each["node"] for each in json.loads(out)]) == (1, ["training-1", "training-3"])
    assert "training-2: refused (saga-open)" in err


async def test_nothing_is_sent_where_one_of_the_names_is_wrong(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """A mistyped name would otherwise leave half of a maintenance done."""
    before = await manager.last_sequence(EVENTS.name)
    code, _, err = await navarch("drain", "training-1", "trainnig-3", url=server.url)
    assert (code, "there is no node 'trainnig-3'" in err) == (1, True)
    assert await manager.last_sequence(EVENTS.name) == before


async def test_selectors_leave_out_the_other_nodes(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """Nodes are selected by health and by the pool's labels.

    A word that no node can have is refused.
    """
    spec = PoolSpec(
        provider="fake", instance_type="simulated", labels={"team": "a"}, min_nodes=0, max_nodes=9
    )
    record = PoolRecord(name="training", spec=spec, desired=3)
    await manager.put(POOLS, pool_key("training"), encode(record))
    runs = await asyncio.gather(
        navarch("list", "--health", "unhealthy", "-o", "yaml", url=server.url),
        navarch("list", "-l", "team=a", "-o", "json", url=server.url),
        navarch("list", "-l", "team=b", url=server.url),
        navarch("list", "--health", "green", url=server.url),
        navarch("list", "-l", "team", url=server.url),
        navarch("list", "-o", "wide", url=server.url),
    )
    assert [each["id"] for each in yaml.safe_load(runs[0][1])] == ["training-2"]
    assert len(json.loads(runs[1][1])) == 3
    assert runs[2][1].endswith("No node is like that; `navarch list` shows all.\n")
    assert (runs[3][0], "none of healthy, degraded" in runs[3][2]) == (2, True)
    assert (runs[4][0], "not KEY=VALUE" in runs[4][2]) == (2, True)
    assert "LAST CHANGE" in runs[5][1]


async def test_a_watched_view_is_shown_again_after_an_event(
    manager: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event that came while the view was made shows it again; an error does not end it."""
    monkeypatch.setattr(view_commands, "INTERVAL_SECONDS_MIN", 0.0)
    fleet, shown = BusFleet(manager), 0
    done = asyncio.Event()

    async def view() -> None:
        nonlocal shown
        shown += 1
        if shown == 3:
            done.set()
            return
        await manager.publish(subjects.pool_event("training", "scaled"), b"{}")
        if shown == 2:
            raise NavarchError("the pool-manager restarts")

    watching = asyncio.create_task(view_commands.show_view(fleet, view, watch=True))
    async with asyncio.timeout(10):
        await done.wait()
    watching.cancel()
    await asyncio.wait({watching})
    assert watching.cancelled()
