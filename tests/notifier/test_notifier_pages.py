"""The programs, commands and configurations of the pages about notifiers are run."""

import asyncio
import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from schemas.duration import Duration, decode_hook
from services.notifier.conformance import NotifierConformance
from services.notifier.conformance.notifier_suite import order, reference
from services.notifier.workload.exec_notifier import ExecNotifier, ExecOrder
from services.notifier.workload.ray_notifier import RayNotifier
from services.notifier.workload.webhook_notifier import WebhookNotifier
from services.notifier.workload.workload_notifier import NodeWorkload, Notifier, StepFailure
from services.primitives.clock import SystemClock
from services.primitives.free_ports import free_ports
from tests.notifier.workload_sites import ExecSite

DOCS = Path(__file__).parents[2] / "docs"
SECRET = "0123456789abcdef0123456789abcdef"
CLASSES: Mapping[str, Any] = {"webhook": WebhookNotifier, "exec": ExecNotifier, "ray": RayNotifier}


def blocks(page: str, language: str) -> list[str]:
    """Return the page's blocks of a language, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", each, flags=re.MULTILINE) for indent, each in found]


@pytest.mark.parametrize("page", ["webhook.md", "write-a-notifier.md", "ray.md"])
def test_the_configurations_are_accepted(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration is accepted with every option that it shows."""
    text = blocks(page, "yaml")[0].replace("${SCHEDULER}", "http://scheduler")
    settings = yaml.safe_load(text.replace("${WEBHOOK_SECRET}", SECRET))["notifiers"]["research"]
    kind = settings.pop("type")
    monkeypatch.setattr("shutil.which", lambda name: name)
    msgspec.convert(settings, CLASSES[kind].Options, dec_hook=decode_hook)


@asynccontextmanager
async def receiver() -> AsyncIterator[str]:
    """Run the receiver of the page, and yield its URL."""
    (port,) = free_ports(1)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-c", blocks("webhook.md", "python")[0]),
        env={"WEBHOOK_SECRET": SECRET, "PORT": str(port)},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(20):
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


def webhook(url: str, secret: str) -> WebhookNotifier:
    """Return a notifier of this receiver."""
    options = WebhookNotifier.Options(
        **{f"{each}_url": f"{url}/{each}" for each in ("cordon", "uncordon", "drain")},
        drain_status_url=f"{url}/status",
        secret=secret,
    )
    return WebhookNotifier(options=options, clock=SystemClock())


async def drained(notifier: Notifier, node: str) -> bool:
    """Return whether the notifier says that a node is drained."""
    answer = (await notifier.workloads([reference(node)]))[node]
    assert isinstance(answer, NodeWorkload)
    return answer.drained


async def test_the_receiver_of_the_page_works() -> None:
    """The receiver knows the signature, drains, and refuses one made with another secret."""
    async with receiver() as url:
        good, bad = webhook(url, SECRET), webhook(url, SECRET[::-1])
        for each in ("training-1", "training-2"):
            await good.cordon(order(each, "cordon"))
            await good.drain(order(each, "drain"))
        assert await drained(good, "training-1")
        assert not await drained(good, "training-2")
        with pytest.raises(StepFailure, match="401"):
            await bad.uncordon(order("training-1", "uncordon"))
        with pytest.raises(StepFailure, match="401"):
            await drained(bad, "training-1")
        await good.uncordon(order("training-1", "uncordon"))
        assert not await drained(good, "training-1")
        await good.close()
        await bad.close()


def test_the_signature_by_hand_is_the_signature() -> None:
    """The page's command prints what the header has after `sha256=`."""
    given = {"TIMESTAMP": "1700000000", "BODY": '{"event": "cordon"}', "WEBHOOK_SECRET": SECRET}
    printed = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", blocks("webhook.md", "bash")[0]],
        env=os.environ | given,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    signed = f"{given['TIMESTAMP']}.{given['BODY']}".encode()
    assert printed == hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()


async def test_the_command_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's answers are those of the contract, also to the documented order."""
    monkeypatch.setenv("STATE", str(tmp_path))
    program = tmp_path / "scheduler"
    program.write_text(blocks("write-a-notifier.md", "python")[0])
    options = ExecNotifier.Options(
        command=(sys.executable, "-S", str(program)), environment=("STATE",), timeout=Duration(20)
    )
    made = ExecNotifier(options=options, clock=SystemClock())
    (tmp_path / "n1.job").write_text("job 4711")
    await made.drain(order("n1", "drain"))
    assert not await drained(made, "n1")
    await made.evict(order("n1", "evict"))
    assert await drained(made, "n1")
    await made.uncordon(order("n1", "uncordon"))
    assert not await drained(made, "n1")
    documented = json.loads(blocks("write-a-notifier.md", "json")[0])
    assert documented["version"] == 1
    fields = {each.name for each in msgspec.structs.fields(ExecOrder)}
    assert {*documented, "gpus"} == fields


def test_the_plugin_test_of_the_page_is_a_conformance_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test's imports exist, and it inherits the suite."""
    acme = types.ModuleType("acme_navarch.testing")
    acme.AcmeSite = ExecSite  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "acme_navarch", types.ModuleType("acme_navarch"))
    monkeypatch.setitem(sys.modules, "acme_navarch.testing", acme)
    made: dict[str, Any] = {}
    exec(blocks("write-a-notifier.md", "python")[1], made)
    assert issubclass(made["TestAcme"], NotifierConformance)
