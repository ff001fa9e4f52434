"""A fleet in which everybody has credentials of its own, and whose cloud takes a node back."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from schemas import subjects
from schemas.node_events import Admitted, Drained
from schemas.saga_log_entries import SagaStarted
from schemas.settings import NatsSettings
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, SAGAS
from services.bus.nats.embedded_server import EmbeddedServer
from services.cli.nats_config_files import ACCOUNTS, SIGNING_FILE
from tests.agent.metadata_servers import Aws, Response
from tests.whole_fleet.fleet import Fleet, serving_fleet

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

POOLS = """
  spot:
    min_nodes: 2
    max_nodes: 4
    gpu_count: 1
"""
NOTICE_SECONDS = 60.0


class FirstHost(Aws):
    """The metadata service of many hosts at one address: what it announces is for one of them.

    The hosts are told apart by their tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[str] = []

    async def answer(self, method: str, target: str, headers: Mapping[str, str]) -> Response:
        if target == "/latest/api/token":
            made = await super().answer(method, target, headers)
            self.tokens.append(self.token)
            return made
        asked = headers.get("x-aws-ec2-metadata-token", "")
        if asked not in self.tokens:
            return 401, {}, b"Unauthorized"
        if asked != self.tokens[0]:
            return 404, {}, b"Not Found"
        self.token = asked
        return await super().answer(method, target, headers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def metadata() -> AsyncIterator[FirstHost]:
    """AWS's, as far as the agents can see."""
    server = FirstHost()
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(
    tmp_path_factory: pytest.TempPathFactory, metadata: FirstHost
) -> AsyncIterator[Fleet]:
    """Five services and two nodes, each with its own credentials, on a server that asks for them.

    The test watches with the reader's.
    """
    place = tmp_path_factory.mktemp("secured")
    keys = place / "bus"
    command = (sys.executable, "-m", "services.cli", "nats-config", str(keys), "--fleet", "tests")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")}
    subprocess.run(command, check=True, env=environment)
    server = EmbeddedServer(place / "nats", config=keys / ACCOUNTS)
    await server.start()
    section = (
        f"nats:\n  creds_file: {keys}/creds/{{service}}.creds\n"
        f"  agent_signing_file: {keys / SIGNING_FILE}\n"
    )
    local = (
        "    variables:\n      NAVARCH_CLOUD: aws\n      NAVARCH_CLOUD_INTERVAL: 200ms\n"
        f"      NAVARCH_CLOUD_METADATA_URL: {metadata.url}\n"
    )
    bus = NatsSettings(url=server.url, creds_file=str(keys / "creds" / "reader.creds"))
    try:
        async with serving_fleet(place, POOLS, more=section, local=local, bus=bus) as running:
            yield running
    finally:
        await server.kill()


async def test_a_node_is_replaced_where_everybody_may_say_what_is_theirs(fleet: Fleet) -> None:
    """From the kernel log line to the admitted node; nobody was refused anything on the way."""
    old, _ = await fleet.active("spot", 2)
    places = await fleet.places()
    fleet.break_gpu(old, gpu=0)
    replaced = await fleet.replaced(old.node, places[EVENTS.name])
    after = {each.node for each in await fleet.active("spot", 2)}

    assert replaced.new_node in after
    assert old.node not in after
    agents = [each.read_text() for each in Path(fleet.serving.directory).glob("**/agent.log")]
    assert [] == [line for line in (*fleet.log, *agents) if "ermissions violation" in line]


async def test_a_spot_notice_brings_the_new_node_before_the_old_ones_moment(
    fleet: Fleet, metadata: FirstHost
) -> None:
    """Work that does not leave holds up the drain, and not the node that comes in its place."""
    before = {each.node for each in await fleet.active("spot", 2)}
    places = await fleet.places()
    fleet.around.busy.update(before)
    deadline = datetime.now(UTC) + timedelta(seconds=NOTICE_SECONDS)
    # The host that asked for the first token is gone by now where it was the one that broke.
    metadata.tokens.reverse()
    when = deadline.isoformat(timespec="seconds").replace("+00:00", "Z")
    metadata.items["spot/instance-action"] = {"action": "terminate", "time": when}
    started = decode_stored(
        await fleet.first(
            SAGAS.name,
            subjects.SAGAS,
            places[SAGAS.name],
            lambda message: isinstance(message, SagaStarted),
        )
    )
    assert isinstance(started, SagaStarted)
    taken = started.params.node
    admitted = await fleet.first(
        EVENTS.name,
        subjects.node_event_wildcard("admitted"),
        places[EVENTS.name],
        lambda message: isinstance(message, Admitted),
    )
    assert admitted.time < deadline
    fleet.around.busy.clear()
    drained = await fleet.first(
        EVENTS.name,
        subjects.node_event_wildcard("drained"),
        places[EVENTS.name],
        lambda message: isinstance(message, Drained) and message.node == taken,
    )
    replaced = await fleet.replaced(taken, places[EVENTS.name])

    assert taken in before
    assert started.params.order == "launch_ahead"
    assert admitted.time < drained.time < deadline
    assert "AWS takes the spot instance back" in replaced.reason
    told = [each.path for each in fleet.around.orders_about(taken)]
    assert ["/cordon", "/drain"] == told
