"""One node's credentials cannot keep the connections that all agents share."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client

from schemas import permissions
from services.bus.nats.account_updates import Connection
from services.bus.nats.connection_options import ConnectOptions, credentials
from services.bus.nats.nats_bus import NatsBus
from services.primitives.errors import Unavailable
from services.provisioner.removal import credentials_revoker
from services.provisioner.removal.connection_crowds import CONNECTIONS_OF_NODE_MAX, find_crowds
from tests.redteam.test_revocation import Place, ended
from tests.support.inprocess import eventually
from tests.support.secured import nats_config, serving_secured

SHARE = 40
"""Connections of all agents together; a fleet has 40,000."""


@pytest.fixture
async def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    """Provide a secured server that takes few agents, and a provisioner that may revoke."""
    monkeypatch.setattr(credentials_revoker, "CHECK_SECONDS", 0.2)
    monkeypatch.setitem(permissions.CONNECTIONS_MAX, "agents", SHARE)
    directory = nats_config(tmp_path / "bus")
    async with serving_secured(directory, tmp_path / "nats") as secured:
        bus = await NatsBus.connect(secured.options("provisioner"))
        yield Place(secured, bus, tmp_path)
        await bus.close()


async def opened(place: Place, options: ConnectOptions, count: int) -> list[Client]:
    """Open so many connections with one agent's credentials, as far as the server takes them."""
    found: list[Client] = []

    async def ignore(_: Exception) -> None:
        return

    for _ in range(count):
        client = Client()
        try:
            await client.connect(
                place.secured.url,
                error_cb=ignore,
                allow_reconnect=False,
                inbox_prefix=options.inbox_prefix,
                **credentials(options),
            )
        except (nats.errors.Error, OSError, asyncio.IncompleteReadError):
            await client.close()
        else:
            found.append(client)
    return found


async def test_a_node_that_crowds_the_others_out_is_disconnected(crowded: Place) -> None:
    """No other agent can connect until it is; those that were connected stay."""
    options = {node: await crowded.enrolled(node) for node in ("n1", "n2", "n3")}
    connected = await NatsBus.connect(options["n2"])
    crowd = await opened(crowded, options["n1"], SHARE + 20)
    assert len(crowd) == SHARE - 1
    with pytest.raises(Unavailable):
        await NatsBus.connect(options["n3"], seconds_max=0.5)
    with crowded.provisioner():

        async def back() -> bool:
            return not await crowded.refused(options["n3"])

        await eventually(back, within_seconds=30)
        assert await crowded.refused(options["n1"])
        assert connected.connected
        (failure,) = crowded.failures.current
        assert (failure.failure, failure.about) == ("node-disconnected", "node n1")
        assert f"held {SHARE - 1} connections" in failure.reason
    record = await crowded.store.get("training.n1")
    assert record is not None
    assert record.disconnected_at is not None
    for each in crowd:
        await each.close()
    await connected.close()


async def test_a_key_of_no_instance_is_refused_too(crowded: Place) -> None:
    """A node's bootstrap has such a key, and what `nats-config agent` writes."""
    options = crowded.secured.options("agent:training/stray")
    other = await NatsBus.connect(crowded.secured.options("agent:training/n9"))
    crowd = await opened(crowded, options, SHARE - 1)
    with crowded.provisioner():
        async with asyncio.timeout(30):
            while any(each.is_connected for each in crowd):
                await asyncio.sleep(0.05)
        assert await crowded.refused(options)
        assert other.connected
    for each in crowd:
        await each.close()
    await other.close()


async def test_none_is_counted_while_there_is_room(crowded: Place) -> None:
    """A node with too many connections harms no other then; to list those of a fleet takes time."""
    options = await crowded.enrolled("n1")
    crowd = await opened(crowded, options, CONNECTIONS_OF_NODE_MAX + 1)
    gone = await crowded.enrolled("n2")
    bus = await NatsBus.connect(gone)
    with crowded.provisioner():
        await crowded.terminate("n2")
        await ended(bus)  # so it has looked
        assert all(each.is_connected for each in crowd)
    for each in (*crowd, bus):
        await each.close()


def test_who_has_too_many_connections() -> None:
    """Each key counts for itself; those that many pods share name no node."""

    def connection(key: str, *tags: str) -> Connection:
        return Connection(authorized_user=key, tags=list(tags))

    of_node = ("pool:training", "node:n1")
    found = find_crowds(
        [
            *[connection("A", *of_node)] * (CONNECTIONS_OF_NODE_MAX + 1),
            *[connection("B", *of_node)] * CONNECTIONS_OF_NODE_MAX,
            *[connection("C", "pool:training")] * 1_000,
            *[connection("")] * 1_000,
        ]
    )
    assert found == [("A", "training", "n1", CONNECTIONS_OF_NODE_MAX + 1)]
