"""Changes wait with `--wait` and `--wait-timeout`."""

from datetime import UTC, datetime

import pytest

from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_log_entries import SagaDone, SagaEntry, SagaStarted, SagaStuck, SagaUnwound
from schemas.saga_params import SagaParams
from schemas.settings import PoolSpec
from schemas.topology import NODES, POOLS, SAGAS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.console import Format
from services.cli.node_requests import saga_end
from services.fleet_client.fleet_client import FleetClient
from services.saga.participant import append
from tests.cli.test_commands import navarch

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
SAGA = "drain-training-1-1"
PARAMS = SagaParams(pool="training", node="training-1")


async def test_scale_waits_until_the_pool_has_its_size(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """Spares are none of it; when the time is over it says where to look."""
    pool = PoolRecord(name="training", spec=PoolSpec(min_nodes=0, max_nodes=9), desired=3)
    await manager.put(POOLS, pool_key("training"), encode(pool))
    for number in (1, 2, 3, 4):
        name = f"training-{number}"
        record = NodeRecord(pool="training", node=name, state="active", spare=number == 4)
        await manager.put(NODES, node_key("training", name), encode(record))
    reached = await navarch("scale", "training", "3", "--wait", url=server.url)
    options = ("--wait", "--wait-timeout", "50ms")
    missed = await navarch("scale", "training", "4", *options, url=server.url)
    mistyped = await navarch("scale", "training", "4", "--wait-timeout", "soon", url=server.url)

    assert reached[0] == 0, reached
    assert reached[1].count("in service") == 3
    assert missed[0] == 1
    assert "not done within 50ms; it goes on: navarch why training" in missed[2]
    assert mistyped[0] == 2


@pytest.mark.parametrize(
    ("end", "cancelled", "said"),
    [
        (SagaDone, False, ""),
        (SagaUnwound, True, ""),
        (SagaDone, True, f"{SAGA} was done before it could be cancelled"),
        (SagaUnwound, False, f"{SAGA} ended without success: enough"),
    ],
)
async def test_a_saga_is_followed_from_the_request_on(
    bus: NatsBus, end: type[SagaEntry], said: str, *, cancelled: bool
) -> None:
    """A saga that was stuck before its retry has not ended; a cancelled one ends by unwinding."""
    begun = SagaStarted(id="s", time=NOW, saga=SAGA, kind="drain", params=PARAMS)
    stuck = SagaStuck(id="t", time=NOW, saga=SAGA, step="drain", reason="lost")
    await append(bus, begun, 0, {})
    await append(bus, stuck, await bus.last_sequence(SAGAS.name), {})
    after = await bus.last_sequence(SAGAS.name)
    more = {"reason": "enough"} if end is SagaUnwound else {}
    await append(bus, end(id="e", time=NOW, saga=SAGA, **more), after, {})

    fleet = FleetClient(bus)
    found = await saga_end(fleet, SAGA, Format.JSON, after=after, cancelled=cancelled)
    assert found == said
