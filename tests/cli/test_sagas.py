"""`navarch saga cancel|retry` and an uncordon that cancels, against a real pool-manager."""

import asyncio
from functools import partial

from schemas import subjects
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.service import build
from tests.cli.test_commands import navarch
from tests.pool_manager.fleet import events, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers


async def test_an_operator_cancels_retries_and_uncordons(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """Accepted with the result, or refused in one sentence; `--wait` waits for the uncordon."""
    url = server.url
    async with Peers(bus) as peers, Running(url, "pool-manager", build, settings()):
        [first, second, _] = await eventually(settled(bus, 3))
        peers.hold["drain"] = asyncio.Event()
        wildcard = subjects.saga_step_wildcard("drain", "started")

        async def draining(sagas: int) -> bool:
            return len(await bus.read("SAGAS", wildcard)) == sagas

        _, drained, _ = await navarch("drain", first, url=url)
        await eventually(partial(draining, 1))
        _, listed, _ = await navarch("saga", "list", url=url)
        retried = await navarch("saga", "retry", f"drain-{first}-1", url=url)
        _, cancelled, _ = await navarch("saga", "cancel", f"drain-{first}-1", "--wait", url=url)
        await eventually(lambda: events(bus, "saga-cancelled"))
        await eventually(settled(bus, 3))
        await peers.make_unhealthy("training", second)
        await eventually(partial(draining, 2))
        uncordoned = await navarch("uncordon", second, "--wait", url=url)
        _, out, _ = await navarch("why", second, url=url)

    assert f"drain {first}, saga drain-{first}-1" in drained
    assert f"the work on {first} to leave" in listed
    assert (1, "not stuck\n") == (retried[0], retried[2][-len("not stuck\n") :])
    assert "it leaves behind: the node in service" in cancelled
    assert "unwound" in cancelled
    assert 0 == uncordoned[0], uncordoned
    assert f"uncordon-{second}-2" in uncordoned[1]
    assert f"replace-{second}-1 saga unwinding: at drain" in out
