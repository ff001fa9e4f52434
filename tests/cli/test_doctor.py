"""`navarch doctor`: each thing that may be wrong, and what it says about it."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schemas.permissions import SERVICES
from schemas.topology import DEAD, DURABLES, EVERY_STREAM, INTAKE, MIB, SAGAS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.doctor_checks import (
    LAG_MESSAGES_MAX,
    ConsumerInfo,
    Finding,
    HeldMessages,
    ServiceReply,
    StreamInfo,
    clock_finding,
    disk_finding,
    durable_findings,
    service_findings,
    stream_findings,
)
from tests.support import inprocess

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[2]
STREAMS = {each.name: StreamInfo(NOW) for each in EVERY_STREAM}
CONSUMERS = {each.name: ConsumerInfo() for each in DURABLES}
SERVING = {each: ServiceReply("1.2.0") for each in SERVICES}
GIB = 1024 * MIB


def seconds(count: float) -> timedelta:
    """Return a duration of so many seconds."""
    return timedelta(seconds=count)


def outcomes(found: list[Finding]) -> list[tuple[str, str]]:
    """The checks that are not ok."""
    return [(each.check, each.outcome) for each in found if each.outcome != "ok"]


@pytest.mark.parametrize(
    ("server", "outcome"),
    [(0.0, "ok"), (2.0, "ok"), (2.9, "ok"), (-0.9, "ok"), (3.1, "warning"), (-1.1, "warning")],
)
def test_a_round_trip_is_no_error_of_the_clock(server: float, outcome: str) -> None:
    """Asked at 0 s and answered at 2 s: the server may have stamped it anywhere between."""
    assert clock_finding(NOW + seconds(server), NOW, NOW + seconds(2)).outcome == outcome


def test_a_sound_fleet_has_a_line_for_each_kind_of_thing() -> None:
    """Not one for each of thirty streams and consumers."""
    found = [
        *stream_findings(STREAMS),
        *durable_findings(CONSUMERS),
        *service_findings(SERVING, "1.2.0"),
    ]
    assert outcomes(found) == []
    assert len(found) == 2 + len(SERVICES)


@pytest.mark.parametrize(
    ("name", "state", "outcome"),
    [
        (SAGAS.name, HeldMessages(1, SAGAS.bytes_max - 1), "failing"),
        (SAGAS.name, HeldMessages(1, SAGAS.bytes_max // 2), ""),
        (DEAD.name, HeldMessages(3, 100), "warning"),
        ("EVENTS", HeldMessages(3, 4 * GIB), ""),
        (INTAKE.name, HeldMessages(3, 100, NOW - timedelta(seconds=61)), "failing"),
        (INTAKE.name, HeldMessages(3, 100, NOW - timedelta(seconds=59)), ""),
        (INTAKE.name, HeldMessages(0, 0, NOW - timedelta(days=1)), ""),
    ],
)
def test_a_full_stream_matters_where_it_refuses_more(
    name: str, state: HeldMessages, outcome: str
) -> None:
    """EVENTS drops its oldest; SAGAS stops the fleet; DEAD should be empty; INTAKE soon is."""
    found = stream_findings({**STREAMS, name: StreamInfo(NOW, state)})
    assert outcomes(found) == ([(f"stream {name}", outcome)] if outcome else [])


def test_what_is_missing_is_named_with_its_remedy() -> None:
    """A stream, a consumer that lags, one that is gone, a service that is away, an older one."""
    first, second = DURABLES[:2]
    lagging = {**CONSUMERS, first.name: ConsumerInfo(LAG_MESSAGES_MAX + 1)}
    del lagging[second.name]
    serving = {**SERVING, "metrics": ServiceReply("1.1.0")}
    del serving["notifier"]
    found = [
        *stream_findings({k: v for k, v in STREAMS.items() if k != "EVENTS"}),
        *durable_findings(lagging),
        *service_findings(serving, "1.2.0"),
    ]
    assert outcomes(found) == [
        ("stream EVENTS", "failing"),
        (f"consumer {first.name}", "warning"),
        (f"consumer {second.name}", "failing"),
        ("notifier", "failing"),
        ("metrics", "warning"),
    ]
    assert all(each.remedy for each in found if each.outcome != "ok")


@pytest.mark.parametrize(
    ("free", "total", "outcome"),
    [(50, 100, "ok"), (4, 100, "warning"), (0.5, 2, "warning"), (20, 200, "ok")],
)
def test_a_disk_is_short_below_a_share_or_an_amount(free: float, total: int, outcome: str) -> None:
    """A disk is short below five percent, and a small one below a GiB."""
    assert disk_finding("/data", int(free * GIB), total * GIB).outcome == outcome


async def test_the_command_checks_a_real_bus_and_names_the_services_that_are_away(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """Streams and consumers are there; of the services only the pool-manager answers."""
    assert manager.connected
    code, out, _ = await inprocess.navarch(
        "doctor", "-o", "json", cwd=ROOT, NAVARCH_NATS_URL=server.url
    )
    found = {each["check"]: each["outcome"] for each in json.loads(out)}
    assert code == 3
    expected = {"bus", "clock", "store", "consumers", "topology", "pool-manager"}
    assert {check for check in found if found[check] == "ok"} - {"disk"} == expected
    assert found["notifier"] == "failing"


async def test_the_command_names_a_stream_and_a_consumer_that_are_gone(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """The server answers with an error where there is none: that is no description of one."""
    first, *_ = DURABLES
    await manager.admin(f"CONSUMER.DELETE.{first.stream}.{first.name}", {})
    await manager.admin(f"STREAM.DELETE.{DEAD.name}", {})
    code, out, _ = await inprocess.navarch(
        "doctor", "-o", "json", cwd=ROOT, NAVARCH_NATS_URL=server.url
    )
    found = {each["check"]: each["outcome"] for each in json.loads(out)}
    assert code == 3
    assert found[f"consumer {first.name}"] == found[f"stream {DEAD.name}"] == "failing"


async def test_the_command_shows_what_an_upgrade_changes_and_what_it_cannot(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """The changes are shown before the services of a release start; the command makes none."""
    first, *_ = DURABLES
    await manager.admin(f"STREAM.UPDATE.{SAGAS.name}", SAGAS.config(1) | {"description": "older"})
    await manager.admin(f"STREAM.DELETE.{DEAD.name}", {})
    await manager.admin(f"STREAM.CREATE.{DEAD.name}", DEAD.config(1) | {"storage": "memory"})
    await manager.admin(
        f"CONSUMER.DURABLE.CREATE.{first.stream}.{first.name}",
        {"stream_name": first.stream, "config": first.config(1) | {"max_ack_pending": 7}},
    )
    code, out, _ = await inprocess.navarch(
        "doctor", "-o", "json", cwd=ROOT, NAVARCH_NATS_URL=server.url
    )
    found = {each["check"]: each for each in json.loads(out)}
    assert code == 3
    assert found["stream SAGAS"]["detail"] == f"description: 'older' -> {SAGAS.description!r}"
    assert found["stream SAGAS"]["outcome"] == "warning"
    changed = found[f"consumer {first.name} of {first.stream}"]
    assert changed["detail"] == f"max_ack_pending: 7 -> {first.ack_pending_max}"
    assert found["stream DEAD"]["outcome"] == "failing"
    assert "storage: 'memory' -> 'file'" in found["stream DEAD"]["detail"]
    info = await manager.admin(f"STREAM.INFO.{SAGAS.name}", {})
    assert info["config"]["description"] == "older"


async def test_a_bus_that_is_away_is_a_finding(tmp_path: Path) -> None:
    """The other checks are made all the same."""
    code, out, _ = await inprocess.navarch(
        "doctor", "--nats-url", "nats://127.0.0.1:1", "-o", "json", cwd=tmp_path
    )
    found = {each["check"]: each for each in json.loads(out)}
    assert code == 3
    assert found["bus"]["outcome"] == "failing"
    assert found["bus"]["remedy"]
