"""A fleet with credentials for every service and node, and a cloud that preempts a node."""

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
from services.bus.nats.credentials_file import life
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.cli.fleet_discovery import LOCAL_FOLDER
from services.primitives.errors import LoginRefused
from tests.agent.metadata_servers import Aws, Response
from tests.support.inprocess import eventually
from tests.whole_fleet.fleet import Fleet, serving_fleet

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

POOLS = """
  spot:
    min_nodes: 2
    max_nodes: 4
    gpu_count: 1
"""
NOTICE_SECONDS = 60.0


class SharedMetadataServer(Aws):
    """The metadata service of many hosts at one address: its notice is for one of them.

    Tokens distinguish the hosts; the first that asks about its end gets the notice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[str] = []
        self.ending = ""

    async def answer(self, method: str, target: str, headers: Mapping[str, str]) -> Response:
        if target == "/latest/api/token":
            made = await super().answer(method, target, headers)
            self.tokens.append(self.token)
            return made
        asked = headers.get("x-aws-ec2-metadata-token", "")
        if asked not in self.tokens:
            return 401, {}, b"Unauthorized"
        if not self.ending and "/spot/" in target:
            self.ending = asked
        if asked != self.ending:
            return 404, {}, b"Not Found"
        self.token = asked
        return await super().answer(method, target, headers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def metadata() -> AsyncIterator[SharedMetadataServer]:
    """AWS's metadata service, as the agents see it."""
    server = SharedMetadataServer()
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(
    tmp_path_factory: pytest.TempPathFactory, metadata: SharedMetadataServer
) -> AsyncIterator[Fleet]:
    """Five services and two nodes with their own credentials, as `navarch serve` starts them.

    The test connects with a viewer's.
    """
    place = tmp_path_factory.mktemp("secured")
    local = (
        "    variables:\n      NAVARCH_CLOUD: aws\n      NAVARCH_CLOUD_INTERVAL: 200ms\n"
        f"      NAVARCH_CLOUD_METADATA_URL: {metadata.url}\n"
    )
    async with serving_fleet(place, POOLS, local=local, role="viewer") as running:
        yield running


async def test_node_is_replaced_with_minimal_permissions(fleet: Fleet) -> None:
    """No publication is refused from the kernel log line to the admitted node.

    A copy of the replaced node's credentials is refused then, and others are not.
    """
    old, stays = await fleet.active("spot", 2)
    local = fleet.serving.directory / LOCAL_FOLDER
    copy = fleet.directory / "copied.creds"
    copy.write_bytes((local / old.node / "nats.creds").read_bytes())
    sequences = await fleet.last_sequences()
    assert not await login_refused(fleet, copy)
    fleet.break_gpu(old, gpu=0)
    replaced = await fleet.replaced(old.node, sequences[EVENTS.name])
    after = {each.node for each in await fleet.active("spot", 2)}

    async def refused() -> bool:
        return await login_refused(fleet, copy)

    # An attempt that is refused takes five seconds, and so does one that is cut off in the middle.
    await eventually(refused, within_seconds=30)
    assert not await login_refused(fleet, local / stays.node / "nats.creds")
    issued, expires = life(str(copy))
    assert expires - issued == timedelta(days=1).total_seconds()
    assert replaced.new_node in after
    assert old.node not in after
    agents = [each.read_text() for each in Path(fleet.serving.directory).glob("**/agent.log")]
    assert [] == [line for line in (*fleet.log, *agents) if "ermissions violation" in line]


async def login_refused(fleet: Fleet, file: Path) -> bool:
    """Return whether the server refuses the credentials in a file."""
    nats = NatsSettings(url=fleet.url, creds_file=str(file))
    try:
        bus = await NatsBus.connect(ConnectOptions(settings=nats, name="copy"), seconds_max=5)
    except LoginRefused:
        return True
    await bus.close()
    return False


async def test_spot_notice_launches_the_new_node_before_the_preemption(
    fleet: Fleet, metadata: SharedMetadataServer
) -> None:
    """Work that does not end delays the drain, and not the new node."""
    before = {each.node for each in await fleet.active("spot", 2)}
    sequences = await fleet.last_sequences()
    fleet.workload.busy.update(before)
    deadline = datetime.now(UTC) + timedelta(seconds=NOTICE_SECONDS)
    metadata.ending = ""  # the host that asked first may be the one that was replaced
    when = deadline.isoformat(timespec="seconds").replace("+00:00", "Z")
    metadata.items["spot/instance-action"] = {"action": "terminate", "time": when}
    started = decode_stored(
        await fleet.first(
            SAGAS.name,
            subjects.SAGAS,
            sequences[SAGAS.name],
            lambda message: isinstance(message, SagaStarted),
        )
    )
    assert isinstance(started, SagaStarted)
    taken = started.params.node
    admitted = await fleet.first(
        EVENTS.name,
        subjects.node_event_wildcard("admitted"),
        sequences[EVENTS.name],
        lambda message: isinstance(message, Admitted),
    )
    assert admitted.time < deadline
    fleet.workload.busy.clear()
    drained = await fleet.first(
        EVENTS.name,
        subjects.node_event_wildcard("drained"),
        sequences[EVENTS.name],
        lambda message: isinstance(message, Drained) and message.node == taken,
    )
    replaced = await fleet.replaced(taken, sequences[EVENTS.name])

    assert taken in before
    assert started.params.order == "launch_ahead"
    assert admitted.time < drained.time < deadline
    assert "AWS takes the spot instance back" in replaced.reason
    orders = [each.path for each in fleet.workload.orders_about(taken)]
    assert ["/cordon", "/drain"] == orders
