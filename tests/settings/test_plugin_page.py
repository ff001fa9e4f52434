"""The programs and configurations of docs/plugins.md are run, and what its table names exists."""

import importlib.metadata
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import httpx
import pytest

from schemas.alert_records import Alert
from schemas.node_records import NodeRecord, RemediationAttempt
from schemas.plugin_kinds import KINDS
from services.cli.configuration_check import check_file
from services.notifier.alerts.alert_channel import AlertChannel, ChannelRefusalError
from services.primitives.clock import SystemClock
from tests.notifier.test_notifier_pages import blocks

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = "plugins.md"
NOW: Final = datetime(2026, 11, 25, tzinfo=UTC)
BASE: Final = """
providers:
  local: {type: local}
"""
POOL: Final = """
    provider: local
    instance_type: local-8gpu
    min_nodes: 0
    max_nodes: 1
"""


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The page's programs, as the package that its configurations name."""
    module = ModuleType("acme_navarch")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for program in blocks(PAGE, "python"):
        exec(program, module.__dict__)
    return module


@pytest.mark.usefixtures("package")
def test_the_configurations_are_accepted(tmp_path: Path) -> None:
    """`navarch config validate` accepts both plugins with the options that the page shows."""
    alerts, pools = blocks(PAGE, "yaml")
    file = tmp_path / "navarch.yaml"
    file.write_text(BASE + alerts + pools.rstrip() + POOL, encoding="utf-8")
    settings = check_file(file, {}).settings
    assert settings.alerts[0].route.name == "pager"


async def test_the_alert_channel_delivers_and_passes_refusals_on(package: Any) -> None:
    """A page is delivered with the alert's key; what it refuses is no outage."""
    status, pages = 201, []

    def answer(request: httpx.Request) -> httpx.Response:
        pages.append(request.content)
        return httpx.Response(status, text="no such team")

    channel = package.Pager(options=package.Pager.Options(url="http://pager"), clock=SystemClock())
    channel._http = httpx.AsyncClient(
        base_url="http://pager", transport=httpx.MockTransport(answer)
    )
    assert isinstance(channel, AlertChannel)
    alert = Alert(
        severity="critical",
        title="t",
        text="t",
        kind="breaker-opened",
        key="k",
        event="e",
        time=NOW,
    )
    assert (await channel.send(alert, "")).receipt == "k"
    assert b'"key":"k"' in pages[0].replace(b" ", b"")
    status = 400
    with pytest.raises(ChannelRefusalError, match="no such team"):
        await channel.send(alert, "")
    await channel.close()


def test_the_remediator_tries_reboots_then_replaces(package: Any) -> None:
    """The remediator tries as many reboots as configured, then a replacement."""
    chooser = package.RebootFirst(options=package.RebootFirst.Options(reboots=1))
    node = NodeRecord(node="training-1", pool="training")
    tried = RemediationAttempt(saga="reboot-training-1-1", kind="reboot", at=NOW)
    assert chooser.choose(node, (), NOW).remedy == "reboot"
    assert chooser.choose(node, (tried,), NOW).remedy == "replace"


def test_every_contract_of_the_table_exists() -> None:
    """Each contract's file, each suite's module, and each group that Navarch itself registers."""
    text = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| [^|]+ \| `(navarch\.\w+)` \| `([\w/.]+)` \|.*\| (.*) \|$", text, re.MULTILINE
    )
    groups = {group for group, _, _ in rows}
    own = {each.group for each in importlib.metadata.distribution("navarch").entry_points}
    assert own - {"console_scripts"} <= groups
    for _, contract, suite in rows:
        assert (ROOT / contract).is_file()
        if suite != "none":
            module = ROOT / suite.strip("`").removeprefix("navarch.").replace(".", "/")
            assert module.is_dir() or module.with_suffix(".py").is_file()


def test_the_page_says_what_happens_instead_of_each_kind() -> None:
    """The table has each kind's limits and its end of every sentence, as declared."""
    text = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    for each in KINDS:
        limits = f"{each.call_seconds:g} s | {each.block_seconds:g} s | {each.at_once}"
        assert f"| {each.name} | {limits} | {each.instead} |" in text
