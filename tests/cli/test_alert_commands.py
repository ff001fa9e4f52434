"""`navarch alerts test`."""

from pathlib import Path

from typer.testing import CliRunner

from services.cli.app import app

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
    """What the other side answered is printed."""
    output, error = run(tmp_path, "pager")
    assert error is None
    first, last = output.splitlines()
    assert first.startswith("pager: alert sent: exit 0: ")
    assert '"status":"firing"' in first
    assert last.startswith("pager: its end sent: exit 0: ")
    assert '"status":"resolved"' in last


def test_one_that_fails_hinders_no_other_and_is_named(tmp_path: Path) -> None:
    """And so is one that does not exist."""
    output, error = run(tmp_path)
    assert "broken: FAILED: false ended with 1" in output
    assert "log: alert sent" in output
    assert "not delivered by broken" in str(error)
    assert "(known: log, pager, broken)" in str(run(tmp_path, "pagr")[1])
