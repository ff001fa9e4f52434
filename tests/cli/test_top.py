"""`navarch top`: the most used first, of the nodes that there are."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas import subjects
from schemas.gpu_samples import GpuSample
from schemas.messages import encode
from schemas.node_events import Telemetry
from schemas.node_records import NodeRecord, node_key
from schemas.topology import NODES
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.cli.commands import top_command
from services.cli.commands.top_command import total_line, use_rows
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.fleet_use import FleetUse, UseOrder, ordered, total
from services.fleet_client.use_reader import read_use
from tests.cli.test_commands import navarch
from tests.support import inprocess
from tests.support.secured import Secured

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
GIB = 2**30


def gpu(index: int, use: int | None, **more: Any) -> GpuSample:
    """Return a GPU with 80 GiB."""
    return GpuSample(index=index, utilization_percent=use, memory_total_bytes=80 * GIB, **more)


SAMPLES = {
    "n1": (gpu(0, 10, power_watts=300.0, memory_used_bytes=40 * GIB), gpu(1, 30)),
    "n2": (gpu(0, 100, temperature_celsius=70), gpu(1, 90, temperature_celsius=81)),
    "n3": (gpu(0, None, power_watts=900.0),),
    "n4": (),
}


def sample(node: str, gpus: tuple[GpuSample, ...]) -> bytes:
    """Return a sample as an agent publishes it."""
    return encode(Telemetry(id=f"t-{node}", time=NOW, pool="training", node=node, gpus=gpus))


def known() -> FleetUse:
    """Return a fleet of four nodes."""
    use = FleetUse()
    for number, (node, gpus) in enumerate(SAMPLES.items()):
        subject = subjects.telemetry("training", node)
        use.take_sample(Stored(subject, sample(node, gpus), number, NOW))
        record = NodeRecord(pool="training", node=node, state="active", health="healthy")
        use.take_node(node_key("training", node), record)
    return use


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("use", ["n2", "n1", "n3", "n4"]),
        ("memory", ["n1", "n2", "n3", "n4"]),
        ("power", ["n3", "n1", "n2", "n4"]),
        ("temperature", ["n2", "n1", "n3", "n4"]),
        ("name", ["n1", "n2", "n3", "n4"]),
    ],
)
def test_the_most_used_come_first(order: UseOrder, names: list[str]) -> None:
    """Nodes whose use is unknown come last."""
    assert [each.node for each in ordered(known().rows(), order)] == names


def test_a_node_is_the_mean_of_its_gpus_and_the_fleet_that_of_all() -> None:
    """A reading that is missing is left out, and does not count as zero."""
    use = known()
    found = {each.node: each for each in use.rows()}
    assert found["n2"].utilization_percent == 95.0
    assert found["n2"].temperature_celsius == 81
    assert found["n1"].memory_percent == 50.0
    assert found["n3"].utilization_percent is None
    whole = total(use.rows())
    assert (whole.nodes, whole.gpus, whole.power_watts) == (4, 5, 1200.0)
    assert whole.utilization_percent == 57.5
    of_gpus = use.rows(of_gpus=True)
    assert [(each.node, each.gpu) for each in ordered(of_gpus, "use")][:2] == [("n2", 0), ("n2", 1)]
    assert total(of_gpus).utilization_percent == 57.5


def test_a_node_that_is_gone_is_not_shown_and_a_broken_sample_is_counted() -> None:
    """A sample of a node without a record is not shown either."""
    use = known()
    use.take_node("training.n2", NodeRecord(pool="training", node="n2", state="terminated"))
    use.take_node("training.n1", None)
    use.take_sample(Stored(subjects.telemetry("training", "n9"), sample("n9", ()), 9, NOW))
    use.take_sample(Stored(subjects.telemetry("training", "n3"), b'{"gpus": 1}', 10, NOW))
    assert sorted(each.node for each in use.rows()) == ["n3", "n4"]
    assert use.unreadable == 1


def test_a_table_says_what_is_not_known_and_how_much_is_left_out() -> None:
    """Values have units, and each sample has its age."""
    rows = ordered(known().rows(), "use")
    cells = use_rows(rows, NOW + timedelta(seconds=12))
    assert cells[0][4:] == ("2", "95 %", "-", "-", "81 °C", "12.0 s ago")
    assert cells[2][5:9] == ("-", "-", "900 W", "-")
    line = total_line(total(rows), 2, len(rows))
    assert line == "4 nodes with 5 GPUs, used 58 %, 1.2 kW; the first 2 of 4 rows"


async def test_top_shows_the_samples_of_the_last_seconds(
    bus: NatsBus, server: EmbeddedServer
) -> None:
    """Once without a terminal; as JSON for programs; by pool."""
    for node, gpus in SAMPLES.items():
        record = NodeRecord(pool="training", node=node, state="active", health="healthy")
        await bus.put(NODES, node_key("training", node), encode(record))
        await bus.publish(subjects.telemetry("training", node), sample(node, gpus))
    _, out, _ = await navarch("top", url=server.url)
    _, few, _ = await navarch("top", "--gpus", "--count", "1", url=server.url)
    _, data, _ = await navarch("top", "--sort", "power", "-o", "json", url=server.url)
    wrong = await navarch("top", "--sort", "colour", url=server.url)

    head, _, titles, first, *rest = out.splitlines()
    assert head == "4 nodes with 5 GPUs, used 58 %, 1.2 kW"
    assert titles.split()[:4] == ["NODE", "POOL", "STATUS", "HEALTH"]
    assert first.split()[:7] == ["n2", "training", "active", "healthy", "2", "95", "%"]
    assert len(rest) == 3
    assert "the first 1 of 5 rows" in few
    assert [each["node"] for each in json.loads(data)["rows"]] == ["n3", "n1", "n2", "n4"]
    assert (wrong[0], "none of use, memory" in wrong[2]) == (2, True)


async def test_it_is_shown_again_when_a_sample_or_a_node_has_come(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is not shown again when nothing has come."""
    monkeypatch.setattr(top_command, "INTERVAL_SECONDS_MIN", 0.0)
    shown = list[list[str]]()
    fleet = FleetClient(bus)
    use, after = await read_use(bus, "training", datetime.now(UTC))

    def show() -> None:
        shown.append(sorted(each.node for each in use.rows()))

    following = asyncio.create_task(top_command._follow(fleet, "training", use, after, show))
    for node in ("n1", "n2"):
        record = NodeRecord(pool="training", node=node, state="active")
        await bus.put(NODES, node_key("training", node), encode(record))
        await bus.publish(subjects.telemetry("training", node), sample(node, SAMPLES[node]))

    async def both() -> bool:
        return shown[-1:] == [["n1", "n2"]]

    await inprocess.eventually(both)
    following.cancel()
    await asyncio.wait({following})
    assert len(shown) <= 6


async def test_a_viewer_may_look(secured: Secured) -> None:
    """A viewer's credentials permit what the command reads."""
    admin = await NatsBus.connect(secured.options("admin"))
    record = NodeRecord(pool="training", node="n1", state="active", health="healthy")
    await admin.put(NODES, node_key("training", "n1"), encode(record))
    await admin.publish(subjects.telemetry("training", "n1"), sample("n1", SAMPLES["n1"]))
    await admin.close()
    environment = {
        "NAVARCH_NATS_URL": secured.url,
        "NAVARCH_NATS_CREDS_FILE": str(secured.file("viewer")),
    }
    _, out, err = await inprocess.navarch("top", **environment)
    assert ("1 node with 2 GPUs" in out, err) == (True, "")
