"""Each kind of plugin times each misbehaviour: what its caller gets, and what goes on."""

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest

from agent.maintenance.diagnostics import health_check_plugins
from schemas.alert_records import Alert
from schemas.node_events import CheckResult
from schemas.node_records import NodeRecord
from schemas.plugin_kinds import KINDS
from services.gateway.access_tokens import Principal
from services.gateway.authenticators import chain
from services.gateway.authenticators.authenticator import Presented, UnreachableError
from services.notifier.alerts import guarded_channel
from services.notifier.alerts.alert_channel import AlertDelivery
from services.notifier.workload import guarded_notifier
from services.notifier.workload.workload_notifier import NodeReference, NodeWorkload
from services.pool_manager import asked_remediator
from services.pool_manager.autoscaling import guarded_autoscaler
from services.pool_manager.autoscaling.autoscalers import PoolState, Recommendation
from services.pool_manager.autoscaling.metrics_sources import Load, SourceError
from services.pool_manager.planner.remediator import RemedyChoice
from services.primitives.plugin_boundary import GuardedPlugin, PluginFailedError
from services.provisioner.offerings import scheduler_plugins
from services.provisioner.offerings.scheduler import LaunchOption
from services.provisioner.provider_client import provider_calls
from services.provisioner.provider_client.provider import Capabilities, Instance
from services.provisioner.provider_client.provider_errors import ProviderError
from services.runtime.plugin_host import PluginHost

NOW: Final = datetime(2026, 11, 29, tzinfo=UTC)
LIMIT_SECONDS: Final = 0.3
ENOUGH_SECONDS: Final = 10.0
"""For calls that are answered, on a loaded machine."""
USUAL_SECONDS: Final = 5.0
"""Another plugin answers within this time, on a loaded machine."""
LEAK_BYTES: Final = 200 * 2**20
LINES: Final = 2_000
NODE = NodeRecord(node="training-1", pool="training")
STATE = PoolState(
    pool="training", current_nodes=1, ready_nodes=1, min_nodes=0, max_nodes=4, now=NOW
)
OPTION = LaunchOption(pool="training", provider="p", instance_type="t")
ALERT = Alert(
    severity="warning", title="t", text="t", kind="breaker-opened", key="k", event="e", time=NOW
)
PRESENTED = Presented("GET", "/", {}, "127.0.0.1")
ANSWERS: Final[dict[str, Any]] = {
    "provider": [Instance(name="n", provider_id="i-1")],
    "scheduler": 2.0,
    "notifier": {"training-1": NodeWorkload(drained=True)},
    "authenticator": Principal(name="ann", role="viewer"),
    "alert channel": AlertDelivery(receipt="r"),
    "autoscaler": Recommendation(target_nodes=2, reason="two"),
    "metrics source": Load(pending_jobs=1),
    "remediator": RemedyChoice(remedy="reboot"),
    "health check": CheckResult(name="x", ok=True, detail="fine"),
}
CONTRACTS: Final = {
    each.kind.name: each
    for each in (
        provider_calls.CONTRACT,
        scheduler_plugins.CONTRACT,
        guarded_notifier.CONTRACT,
        chain.CONTRACT,
        guarded_channel.CONTRACT,
        guarded_autoscaler.AUTOSCALER_CONTRACT,
        guarded_autoscaler.SOURCE_CONTRACT,
        asked_remediator.CONTRACT,
        health_check_plugins.CONTRACT,
    )
}


class Plugin:
    """Answers as each kind does, or misbehaves."""

    name = "acme"
    capabilities = Capabilities()
    repeat_seconds = 0.0
    confirms_drains = batches = True
    poll_seconds = 1.0
    hoard: list[bytearray]

    def __init__(self, kind: str, bad: dict[str, str], release: threading.Event) -> None:
        self.kind, self.bad, self.release = kind, bad, release
        self.hoard = []

    def act(self) -> Any:
        match self.bad.get("how"):
            case "raises":
                raise KeyError("broken")
            case "none":
                return None
            case "wrong":
                return ("nonsense", 7, object())
            case "blocks":
                self.release.wait(60)
            case "floods":
                for _ in range(LINES):
                    logging.getLogger("acme").debug("x" * 200)
            case "leaks":
                self.hoard.append(bytearray(LEAK_BYTES))
        return ANSWERS[self.kind]

    async def do(self, *_: Any) -> Any:
        if self.bad.get("how") == "hangs":
            await asyncio.sleep(60)
        return self.act()

    def decide(self, *_: Any) -> Any:
        if self.bad.get("how") == "hangs":
            self.release.wait(60)
        return self.act()

    list = score = workloads = authenticate = send = load = run = do
    recommend = choose = decide

    async def close(self) -> None:
        self.hoard.clear()


async def asked(kind: str, guard: GuardedPlugin) -> Any:
    """Call a plugin as the caller of its kind does; what happens instead is `INSTEAD`."""
    callers: dict[str, Callable[[], Awaitable[Any]]] = {
        "provider": provider_calls.ProviderCalls(
            guard.plugin, call_timeout_seconds=guard.kind.call_seconds, plugin=guard
        ).list_instances,
        "scheduler": lambda: scheduler_plugins.score(guard, OPTION),
        "notifier": lambda: guarded_notifier.guarded_notifier(guard).workloads(
            [NodeReference(pool="training", node="training-1")]
        ),
        "authenticator": lambda: chain.GuardedAuthenticator(guard).authenticate(PRESENTED),
        "alert channel": lambda: guarded_channel.GuardedChannel(guard).send(ALERT, ""),
        "autoscaler": lambda: guard.call("recommend", STATE),
        "metrics source": lambda: guarded_autoscaler.GuardedSource(guard).load("training"),
        "remediator": lambda: remedy(guard),
        "health check": lambda: guard.call("run", seconds=guard.kind.call_seconds),
    }
    try:
        return await callers[kind]()
    except Exception as error:  # noqa: BLE001 - each kind has its own
        return error


async def remedy(guard: GuardedPlugin) -> RemedyChoice:
    remediator = asked_remediator.AskedRemediator(guard)
    remediator.choose(NODE, (), NOW)
    assert await remediator.ask()
    return remediator.choose(NODE, (), NOW)


INSTEAD: Final[dict[str, Callable[[Any], bool]]] = {
    "provider": lambda found: isinstance(found, ProviderError) and found.kind == "TRANSIENT",
    "scheduler": lambda found: found == 0.0,
    "notifier": lambda found: isinstance(found, PluginFailedError | KeyError),
    "authenticator": lambda found: isinstance(found, UnreachableError),
    "alert channel": lambda found: (
        isinstance(found, PluginFailedError | KeyError) or found == AlertDelivery()
    ),
    "autoscaler": lambda found: isinstance(found, PluginFailedError),
    "metrics source": lambda found: isinstance(found, SourceError),
    "remediator": lambda found: isinstance(found, RemedyChoice) and found.remedy == "alert",
    "health check": lambda found: isinstance(found, PluginFailedError),
}
FAILING: Final = ("raises", "none", "wrong", "hangs", "blocks")
HARMLESS: Final = ("floods", "leaks")


@pytest.fixture
async def release() -> AsyncIterator[threading.Event]:
    """End what blocks with the test."""
    found = threading.Event()
    yield found
    found.set()


def guarded(
    host: PluginHost, kind: str, name: str, plugin: Plugin, limit_seconds: float
) -> GuardedPlugin:
    contract = CONTRACTS[kind]
    short = msgspec.structs.replace(
        contract.kind, call_seconds=limit_seconds, block_seconds=limit_seconds
    )
    contract = dataclasses.replace(contract, kind=short)
    return host.guard(contract, plugin, name, "pool training", make=lambda: plugin)


def test_the_table_has_every_kind() -> None:
    """Each kind has a contract, an answer and a caller here."""
    names = {each.name for each in KINDS}
    assert names == set(CONTRACTS) == set(ANSWERS) == set(INSTEAD)


@pytest.mark.parametrize("how", [*FAILING, *HARMLESS])
@pytest.mark.parametrize("kind", [each.name for each in KINDS])
async def test_a_plugin_that_misbehaves_harms_itself_alone(
    kind: str, how: str, release: threading.Event
) -> None:
    """The caller gets its kind's answer instead, others go on, and the operator reads its name.

    An answer of None is one of an authenticator: it does not know the caller.
    """
    seconds = ENOUGH_SECONDS if how in HARMLESS else LIMIT_SECONDS
    host, bad = PluginHost("service", threads=True), {"how": how}
    culprit = guarded(host, kind, "acme", Plugin(kind, bad, release), seconds)
    other = guarded(host, kind, "other", Plugin(kind, {}, release), ENOUGH_SECONDS)
    usual = await asked(kind, other)
    asking = asyncio.create_task(asked(kind, culprit))
    began = time.monotonic()
    assert await asked(kind, other) == usual
    assert time.monotonic() - began < USUAL_SECONDS
    found = await asking
    if (kind, how) == ("authenticator", "none"):
        assert found is None
    elif how in HARMLESS:
        assert found == usual
    else:
        assert INSTEAD[kind](found), found
        await _named(host, kind, culprit)
    if how == "leaks":
        assert [each.reason for each in host.failures()] == [
            f"the {kind} acme (module tests) made its process {LEAK_BYTES >> 20} MB larger"
        ]
    else:
        bad.clear()
        culprit.switch("")
        assert await asked(kind, culprit) == usual
        assert list(host.failures()) == []
    await asyncio.gather(culprit.close(), other.close())


async def _named(host: PluginHost, kind: str, culprit: GuardedPlugin) -> None:
    """Repeat what callers of channels and notifiers repeat, until it is reported."""
    for _ in range(2):
        if not list(host.failures()):
            await asked(kind, culprit)
    [failure] = host.failures()
    assert failure.about == f"{kind} acme of pool training"
    assert failure.reason.startswith(f"the {kind} acme (module tests) ")
    assert failure.reason.endswith(culprit.kind.instead)
    assert "navarch plugins disable acme" in failure.remedy
