"""The shell completes commands, and the names of the running fleet."""

from datetime import UTC, datetime

import pytest

from schemas.messages import encode
from schemas.pool_records import OpenSaga, PoolRecord, pool_key
from schemas.settings import PoolSpec
from schemas.topology import POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli import live_names
from tests.support import inprocess

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


async def completed(url: str, *words: str) -> list[str]:
    """Return the words that bash is given for the last word."""
    _, out, err = await inprocess.navarch(
        NAVARCH_NATS_URL=url,
        _NAVARCH_COMPLETE="complete_bash",
        COMP_WORDS=" ".join(("navarch", *words)),
        COMP_CWORD=str(len(words)),
    )
    assert err == ""
    return out.split()


async def test_names_of_the_running_fleet_complete_a_word(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """Nodes, pools and sagas, each where it is meant; of a list every word."""
    opened = {"replace-training-2-1": OpenSaga(kind="replace", node="training-2", since=NOW)}
    record = PoolRecord(
        name="training", spec=PoolSpec(min_nodes=0, max_nodes=4), desired=3, open=opened
    )
    await manager.put(POOLS, pool_key("training"), encode(record))

    assert await completed(server.url, "get", "training-") == [f"training-{n}" for n in (1, 2, 3)]
    assert await completed(server.url, "drain", "training-1", "training-3") == ["training-3"]
    assert await completed(server.url, "scale", "tr") == ["training"]
    assert await completed(server.url, "list", "--pool", "tr") == ["training"]
    assert await completed(server.url, "saga", "show", "re") == ["replace-training-2-1"]
    assert "replace-training-2-1" in await completed(server.url, "why", "''")
    assert await completed(server.url, "sta") == ["status"]


@pytest.mark.parametrize("url", ["nats://127.0.0.1:1", "nats://192.0.2.1:4222", "nonsense://"])
async def test_without_a_fleet_no_name_is_offered(url: str) -> None:
    """Neither a word of an error: the shell would take it as a name."""
    assert await completed(url, "get", "tr") == []


async def test_the_wait_is_bounded_and_so_is_the_number_of_names(
    manager: NatsBus, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only names that came in time are offered, and only so many."""
    assert manager.connected
    monkeypatch.setattr(live_names, "NAMES_MAX", 2)
    nodes, pools = live_names._nodes, live_names._pools
    found = await live_names.begun(server.url, None, (nodes,), "training")
    monkeypatch.setattr(live_names, "COMPLETION_SECONDS_MAX", 0.0)
    none = await live_names.begun(server.url, None, (pools,), "")
    assert (found, none) == (["training-1", "training-2"], [])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_each_shell_gets_its_script(shell: str) -> None:
    """Each shell's script names this command."""
    status, out, _ = await inprocess.navarch(_NAVARCH_COMPLETE=f"source_{shell}")
    assert (status, f"_NAVARCH_COMPLETE=complete_{shell}" in out) == (0, True)
