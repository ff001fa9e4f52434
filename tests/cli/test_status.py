"""`navarch status` shows what is wrong first; with --check scripts see it by the exit code."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.alert_records import Alert, OpenAlertRecord, alert_key
from schemas.fleet_queries import CurrentFailure, PoolView
from schemas.messages import encode
from schemas.topology import ALERTS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.commands.view_commands import FAILING
from services.cli.text.status_text import ALERTS_SHOWN_MAX, alerts_text, problems
from services.cli.text.styles import COLOURS
from services.cli.text.table_layout import columns
from services.gateway.views import FleetStatus
from tests.cli.conftest import POOL
from tests.cli.test_commands import navarch
from tests.support.terminals import in_terminal

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
FAILURE = CurrentFailure(failure="store-unwritable", about="nats", reason="full", remedy="free it")


def opened(key: str, severity: Any = "critical") -> OpenAlertRecord:
    """Return the record of an open alert."""
    began = NOW - timedelta(minutes=3)
    title = f"Navarch: {key}"
    about = {"severity": severity, "title": title, "text": "t", "kind": "lost", "event": "e"}
    alert = Alert(key=key, time=began, **about)
    return OpenAlertRecord(alert=key, sequence=1, at=NOW, opened=alert)


def pool(**more: object) -> PoolView:
    """Return a pool with nothing wrong but what is given."""
    return msgspec.structs.replace(POOL, **more)


@pytest.mark.parametrize(
    ("found", "alerts", "expected"),
    [
        (FleetStatus(pools=(POOL,)), [], []),
        (FleetStatus(pools=()), [opened("a/1", "info")], []),
        (FleetStatus(pools=()), [opened("a/1", "warning")], ["warning: a/1: Navarch: a/1"]),
        (FleetStatus(pools=(), failures=(FAILURE,)), [], ["warning: nats: full; free it"]),
        (
            FleetStatus(pools=(pool(breaker="open", breaker_reason="4 faults"),)),
            [opened("a/1")],
            ["critical: a/1: Navarch: a/1", "training: the breaker is open: 4 faults"],
        ),
    ],
)
def test_what_is_wrong_is_one_line_each(
    found: FleetStatus, alerts: list[OpenAlertRecord], expected: list[str]
) -> None:
    """Alerts come first; one that only informs is nothing wrong."""
    assert problems(found, alerts) == expected


def test_many_alerts_are_shown_in_part() -> None:
    """The most severe are shown, and how many more there are."""
    alerts = [opened(f"a/{number}") for number in range(ALERTS_SHOWN_MAX + 2)]
    lines = alerts_text(alerts, NOW, colour=True, width=80).splitlines()
    assert (len(lines), lines[-1]) == (ALERTS_SHOWN_MAX + 2, "… 2 more: navarch alerts list")
    assert lines[1].startswith(f"{COLOURS['bad']}critical    3m0s  a/0")
    assert alerts_text([], NOW, colour=True, width=80) == ""


def test_a_count_of_unhealthy_nodes_is_painted() -> None:
    """A pool without any is not."""
    rows = [("a", "0"), ("b", "2")]
    _, calm, wrong = columns(("pool", "unhealthy"), rows, colour=True).splitlines()
    assert (COLOURS["bad"] in calm, COLOURS["bad"] in wrong) == (False, True)


async def test_status_begins_with_the_open_alerts_and_check_prints_nothing_else(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """The exit code is 3 with --check alone: an alert is no failure of the services."""
    quiet = await navarch("status", "--check", url=server.url)
    assert quiet == (0, "", "")
    key = "health/training/training-2"
    await manager.put(ALERTS, alert_key(key), encode(opened(key)))
    code, out, _ = await navarch("status", url=server.url)
    assert (code, out.splitlines()[1].split()[0]) == (0, "critical")
    assert out.index(key) < out.index("BREAKER")
    checked = await navarch("status", "--check", url=server.url)
    assert checked == (FAILING, f"critical: {key}: Navarch: {key}\n", "")
    code, out, _ = await navarch("status", "-o", "json", url=server.url)
    assert [each["alert"] for each in msgspec.json.decode(out)["alerts"]] == [key]
    code, shown = await in_terminal("status", url=server.url)
    assert (code, "\x1b[31mcritical" in shown) == (0, True)
    assert max(map(len, shown.splitlines())) <= 80 + len("\x1b[31m\x1b[0m")


async def test_doctor_checks_quietly() -> None:
    """The one row without a bus says so, and the exit code says that something fails."""
    code, out, _ = await navarch("doctor", "--check", url="nats://127.0.0.1:1")
    lines = [line for line in out.splitlines() if "  ok  " in line]
    assert (code, lines) == (FAILING, [])
