"""`navarch alerts list`, `acknowledge` and `test` are run."""

import json
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace
from typer.testing import CliRunner

from schemas.alert_records import Alert, ChannelState, OpenAlertRecord
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.app import app
from services.notifier.alerts.open_alerts import AlertAcknowledgement, OpenAlerts
from services.primitives.clock import SystemClock
from tests.support import inprocess

NOW = datetime(2026, 11, 22, tzinfo=UTC)

EXEC = "services.notifier.alerts.channels.exec_channel:ExecAlertChannel"
CONFIGURATION = f"""alerts:
- type: log
- type: {EXEC}
  name: pager
  command: [cat]
- type: {EXEC}
  name: broken
  command: ['false']
"""


def run(tmp_path: Path, *names: str) -> tuple[str, BaseException | None]:
    file = tmp_path / "navarch.yaml"
    file.write_text(CONFIGURATION)
    result = CliRunner().invoke(app, ["alerts", "test", *names, "--config", str(file)])
    return result.output, result.exception


def test_a_channel_is_sent_an_alert_and_its_end(tmp_path: Path) -> None:
    """A channel gets an alert and its end, and the other side's answer is printed."""
    output, error = run(tmp_path, "pager")
    assert error is None
    first, last = output.splitlines()
    assert first.startswith("pager: alert sent: exit 0: ")
    assert '"status":"firing"' in first
    assert last.startswith("pager: its end sent: exit 0: ")
    assert '"status":"resolved"' in last


def test_one_that_fails_hinders_no_other_and_is_named(tmp_path: Path) -> None:
    """A channel that fails, or that does not exist, hinders no other and is named."""
    output, error = run(tmp_path)
    assert "broken: FAILED: false ended with 1" in output
    assert "log: alert sent" in output
    assert "not delivered by broken" in str(error)
    assert "(known: log, pager, broken)" in str(run(tmp_path, "pagr")[1])


async def test_open_alerts_are_listed_and_acknowledged(
    server: EmbeddedServer, bus: NatsBus, tmp_path: Path
) -> None:
    """The most severe first, without what is over; no terminal obeys a text from a node."""
    alerts = OpenAlerts(bus)
    for key, severity, ended in (
        ("breaker/b", "warning", False),
        ("health/a/n1", "critical", False),
        ("lag/x", "critical", True),
    ):
        alert = Alert(
            severity=severity,  # type: ignore[arg-type]
            title=f"{key} \x1b[2J",
            text="Text.",
            kind="verdict",
            key=key,
            event=f"e-{key}",
            time=NOW,
        )
        record = OpenAlertRecord(
            alert=key,
            sequence=1,
            at=NOW,
            opened=alert,
            ended=replace(alert, resolved=True) if ended else None,
            channels={"pager": ChannelState(event=alert.event)},
        )
        await alerts.change(key, lambda _, record=record: record)
    await bus.serve("notifier", "", AlertAcknowledgement(alerts, SystemClock()).endpoints)

    async def navarch(*arguments: str) -> tuple[int, str, str]:
        return await inprocess.navarch(
            "alerts", *arguments, cwd=tmp_path, NAVARCH_NATS_URL=server.url
        )

    taken = await navarch("acknowledge", "health/a/n1", "--reason", "on it")
    unknown = await navarch("acknowledge", "health/a/n2")
    _, table, _ = await navarch("list")
    _, listed, _ = await navarch("list", "-o", "json")

    assert taken[0] == 0, taken
    assert taken[1].startswith("health/a/n1: acknowledged by ")
    assert unknown[0] == 1
    assert "no open alert 'health/a/n2'; see navarch alerts list" in unknown[2]
    assert "\x1b" not in table
    rows = table.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["critical", "warning"]
    assert "pager" in rows[0]
    assert [each["opened"].get("acknowledged_by", "") != "" for each in json.loads(listed)] == [
        *(True, False)
    ]
