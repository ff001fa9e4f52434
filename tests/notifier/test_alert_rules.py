"""Tables say which events become alerts, and how alerts reach operators."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from schemas import subjects
from schemas.fleet_events import ConsumerLag
from schemas.messages import Message, encode
from schemas.node_events import Admitted, Cordoned, Fault, Lost, Returned, Terminated, Verdict
from schemas.pool_events import (
    BreakerClosed,
    BreakerOpened,
    Incident,
    InstanceLeaked,
    LaunchRefused,
    OperatorNeeded,
    SagaCancelled,
    SagaFailed,
    SagaIsStuck,
    Scaled,
)
from schemas.settings import PluginSettings
from services.notifier.alerts.alert_channel import AlertChannel
from services.notifier.alerts.alert_rules import alert_of, end_of, ended_keys
from services.primitives.clock import SystemClock
from services.settings.plugin_loader import load_plugin

LOG_CHANNEL = "services.notifier.alerts.log_channel"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NODE = {"id": "e1", "time": NOW, "pool": "training", "node": "training-1"}
POOL = {"id": "e1", "time": NOW, "pool": "training"}


def verdict(status: str, was: str, action: str = "none") -> Verdict:
    return Verdict(
        **NODE, status=status, previous=was, action=action, rule="xid-79", reason="GPU 3 fell off."
    )


@pytest.mark.parametrize(
    ("event", "severity", "key"),
    [
        (verdict("unhealthy", "healthy", "replace"), "critical", "health/training/training-1"),
        (verdict("degraded", "healthy", "inspect"), "warning", "health/training/training-1"),
        (verdict("healthy", "unhealthy"), None, ""),
        (verdict("unknown", "healthy"), None, ""),
        (Lost(**NODE), "critical", "lost/training/training-1"),
        (Returned(**NODE), None, ""),
        (BreakerOpened(**POOL, unavailable=2, limit=2), "critical", "breaker/training"),
        (
            Incident(
                **POOL,
                incident="xid-79-1",
                status="opened",
                kind="xid",
                code=79,
                nodes=6,
                first=NOW,
                last=NOW,
                named=("training-1",),
                reason="r",
            ),
            "critical",
            "incident/training/xid-79-1",
        ),
        (
            ConsumerLag(
                id="e1",
                time=NOW,
                status="lagging",
                stream="EVENTS",
                durable="health-events",
                messages=5,
                seconds=70,
                reason="5 messages wait",
            ),
            "critical",
            "lag/health-events",
        ),
        (BreakerClosed(**POOL, unavailable=1, limit=2), None, ""),
        (
            SagaFailed(**POOL, saga="s-1", step="provision", reason="r"),
            "warning",
            "saga-failed/training",
        ),
        (
            SagaFailed(**POOL, saga="s-1", step="drain", reason="r", node="n1"),
            "warning",
            "saga-failed/training/n1",
        ),
        (SagaIsStuck(**POOL, saga="s-1", step="cordon", reason="r"), "critical", "saga/s-1"),
        (
            InstanceLeaked(**POOL, instance="training-1", provider="lambda"),
            "critical",
            "leak/training/training-1",
        ),
        (
            LaunchRefused(**POOL, node="training-2", refusal="above-pool-cap", reason="r"),
            "warning",
            "launch/training",
        ),
        (OperatorNeeded(**POOL, node="training-1"), "critical", "operator/training/training-1"),
        (Fault(**NODE, kind="xid", code=79), None, ""),
        (Cordoned(**NODE), None, ""),
        (Scaled(**POOL, previous=1, nodes=2), None, ""),
    ],
)
def test_which_events_alert_and_how_urgently(event, severity, key):
    """A condition and its end have the same key; an event that needs no operator is no alert."""
    alert = alert_of(event)
    assert (alert and alert.severity, alert.key if alert else "") == (severity, key)


REPLACE = "replace-training-1-0"
OF_NODE = {f"{kind}/training/training-1" for kind in ("health", "lost", "operator", "saga-failed")}
FAILED = {"saga": REPLACE, "step": "register", "reason": "late", "node": "training-1"}


@pytest.mark.parametrize(
    ("event", "ended"),
    [
        (Terminated(**NODE, saga=REPLACE), set()),
        (Terminated(**NODE, saga="rack-training-1-1"), OF_NODE),
        (Terminated(**NODE, saga="replace-training-9-1"), OF_NODE),
        (Terminated(**NODE, saga="scale-down-training-1"), OF_NODE),
        (SagaFailed(**POOL, **FAILED), set()),
        (SagaFailed(**POOL, **FAILED, node_gone=True), OF_NODE),
        (SagaCancelled(**POOL, **FAILED), set()),
        (SagaCancelled(**POOL, **FAILED, node_gone=True), OF_NODE),
        (OperatorNeeded(**POOL, node="training-1"), set()),
        (
            OperatorNeeded(**POOL, node="training-1", removed=True),
            OF_NODE - {"operator/training/training-1"},
        ),
    ],
)
def test_alerts_about_a_node_end_with_it(event: Message, ended: set[str]) -> None:
    """Alerts about a node that is being replaced end with its repair.

    A repair that fails ends them as well.
    """
    assert OF_NODE & set(ended_keys(event)) == ended


def test_a_gap_is_the_pools_and_ends_with_its_next_node() -> None:
    """A replacement that failed after the node was gone is no alert about that node."""
    alert = alert_of(SagaFailed(**POOL, **FAILED, new_node="training-2", node_gone=True))
    assert alert is not None
    assert (alert.key, alert.node) == ("saga-failed/training", "training-2")
    assert alert.key in ended_keys(Admitted(**NODE, saga="scale-up-training-3"))


def test_an_alert_says_what_why_and_what_next():
    """The alert alone explains the event."""
    alert = alert_of(verdict("unhealthy", "healthy", "replace"))
    assert alert is not None
    assert alert.title == "training/training-1: unhealthy"
    assert alert.text == "GPU 3 fell off (was healthy, rule xid-79, action replace)."


def test_an_alert_that_needs_an_operator_says_what_to_do():
    """The text says whether the node is cordoned meanwhile."""
    left = OperatorNeeded(
        **POOL,
        node="training-1",
        reason="XID 74",
        remedy="navarch reset-gpu training-1",
        cordoned=True,
    )
    alert = alert_of(left)
    assert alert is not None
    assert alert.title == "training/training-1: operator needed"
    assert alert.text == (
        "XID 74. navarch reset-gpu training-1. The node stays cordoned until then."
    )


def test_a_leak_names_its_cost():
    """The alert has the price per hour."""
    alert = alert_of(
        InstanceLeaked(
            **POOL,
            instance="n",
            provider="lambda",
            provider_id="i-1",
            reason="auth",
            dollars_per_hour=23.92,
        )
    )
    assert alert is not None
    assert alert.text == ("Still at lambda (i-1), $23.92 an hour: auth.")


async def test_the_log_channel_writes_one_structured_line(caplog):
    """Severity sets the level; a collector routes by fields of their own."""
    kind, options = load_plugin("navarch.alert_channels", PluginSettings(type="log"), None)
    channel = kind(options=options, clock=SystemClock())
    assert isinstance(channel, AlertChannel)
    with caplog.at_level(logging.INFO):
        for event in (verdict("unhealthy", "healthy", "replace"), verdict("degraded", "healthy")):
            alert = alert_of(event)
            assert alert is not None
            await channel.send(alert, "")
        await channel.send(end_of(verdict("healthy", "degraded"), alert), "")
    assert [each.levelname for each in caplog.records] == ["ERROR", "WARNING", "INFO"]
    line = caplog.records[0]
    assert (line.message, line.alert, line.severity, line.pool, line.node, line.event) == (
        "training/training-1: unhealthy",
        "health/training/training-1",
        "critical",
        "training",
        "training-1",
        "e1",
    )


async def test_events_on_the_bus_become_lines_in_the_log(bus, notifier, caplog):
    """The running service writes a line in the log for an event."""
    with caplog.at_level(logging.INFO, LOG_CHANNEL):
        async with notifier():
            await bus.publish(
                subjects.node_event("training", "training-1", "verdict"),
                encode(verdict("unhealthy", "healthy")),
            )
            async with asyncio.timeout(60):
                while not any(each.name == LOG_CHANNEL for each in caplog.records):
                    await asyncio.sleep(0.01)
    lines = [each for each in caplog.records if each.name == LOG_CHANNEL]
    assert [each.message for each in lines] == ["training/training-1: unhealthy"]


@pytest.mark.parametrize(
    ("shared", "severity", "title"),
    [
        ({"kind": "xid", "code": 79}, "critical", "training: incident opened: 6 nodes with xid 79"),
        (
            {"kind": "xid", "code": 31, "scope": "job", "within": "slurm-7"},
            "warning",
            "training: incident opened: 6 nodes of job slurm-7",
        ),
        (
            {"kind": "xid", "code": 79, "scope": "job", "within": "slurm-7"},
            "critical",
            "training: incident opened: 6 nodes of job slurm-7",
        ),
        (
            {"kind": "xid", "code": 31, "scope": "rack", "within": "r17"},
            "critical",
            "training: incident opened: 6 nodes of rack r17",
        ),
    ],
)
def test_an_incident_is_as_grave_as_what_its_nodes_share(
    shared: dict[str, Any], severity: str, title: str
) -> None:
    """A program that fails on its job's nodes is a warning; hardware is critical."""
    times = {"first": NOW, "last": NOW}
    event = Incident(**POOL, incident="i", status="opened", nodes=6, **times, **shared)
    alert = alert_of(event)
    assert alert is not None
    assert (severity, title) == (alert.severity, alert.title)
