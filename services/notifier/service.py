"""The notifier: performs the cordon, drain and uncordon steps of sagas; sends alerts and events.

It is stateless: the bus redelivers the message that a killed replica was handling, and has what
each alert channel and each event sink was sent.
"""

import asyncio
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from schemas.gateway_settings import InboundSettings
from schemas.settings import (
    ALERT_CHANNEL_PLUGINS,
    NOTIFIER_PLUGINS,
    AlertSettings,
    PluginSettings,
    Settings,
)
from schemas.topology import NOTIFIER_STEPS
from services.bus.leases import Lease, while_held
from services.notifier.alerts.alert_intake import AlertIntake
from services.notifier.alerts.alert_sender import AlertSender, RoutedChannel
from services.notifier.alerts.alert_updates import AlertUpdates
from services.notifier.alerts.guarded_channel import CONTRACT as CHANNEL_CONTRACT
from services.notifier.alerts.guarded_channel import GuardedChannel
from services.notifier.alerts.open_alerts import AlertAcknowledgement, OpenAlerts
from services.notifier.alerts.store_alerts import StoreAlerts
from services.notifier.event_sinks.event_sinks import EventSinks, configured_sinks
from services.notifier.event_sinks.sink_delivery import SinkMeters
from services.notifier.node_list import NodeList
from services.notifier.node_state_publisher import NodeStatePublisher
from services.notifier.store_watch import StoreWatch
from services.notifier.work_report import read_remaining_work
from services.notifier.workload.guarded_notifier import CONTRACT as NOTIFIER_CONTRACT
from services.notifier.workload.guarded_notifier import guarded_notifier
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import NodeStateReporter, Notifier
from services.notifier.workload_availability import WorkloadAvailability
from services.notifier.workload_endpoints import (
    JobNodesEndpoint,
    NodeWorkEndpoint,
    WorkloadCheckEndpoint,
)
from services.notifier.workload_steps import WorkloadSteps
from services.primitives.clock import Clock, SystemClock
from services.runtime.plugin_host import PluginHost
from services.runtime.process import Context, Service
from services.settings.drain_warnings import drain_warnings
from services.settings.plugin_loader import make_plugin, setting_error
from services.settings.problem_list import ProblemList

log = logging.getLogger(__name__)

LEASE: Final = "notifier.leader"
"""Its holder alone sends alerts and events, and publishes what workload systems say of nodes."""
FINISH_SECONDS: Final = 1.0
"""Enough for an order in flight; the next replica continues a drain."""


def load_notifiers(
    settings: Settings, file: Path | None, clock: Clock, plugins: PluginHost | None = None
) -> tuple[Notifier, dict[str, Notifier]]:
    """Construct the fleet's notifier and the named ones; ConfigurationError if one cannot be."""
    plugins = plugins or PluginHost()

    def load(each: PluginSettings, about: str) -> Notifier:
        make = partial(make_plugin, NOTIFIER_PLUGINS, each, file, clock=clock)
        made: Notifier = make()
        guard = plugins.guard(NOTIFIER_CONTRACT, made, each.type, about, make=make)
        return guarded_notifier(guard) if guard.outside else made

    named = {name: load(each, f"notifier {name}") for name, each in settings.notifiers.items()}
    return load(settings.notifier, ""), named


def load_channels(
    settings: Settings, file: Path | None, clock: Clock, plugins: PluginHost | None = None
) -> list[RoutedChannel]:
    """Construct the alert channels; ConfigurationError if one cannot be."""
    plugins, found = plugins or PluginHost(), []
    for each in settings.alerts:
        make = partial(make_plugin, ALERT_CHANNEL_PLUGINS, each, file, clock=clock)
        route = msgspec.structs.replace(each.route, name=each.route.name or each.type)
        about = f"channel {route.name}"
        guard = plugins.guard(CHANNEL_CONTRACT, make(), each.type, about, make=make)
        found.append(RoutedChannel(route=route, channel=GuardedChannel(guard)))
    return found


def check(settings: Settings, file: Path | None) -> None:
    """Raise ConfigurationError with every notifier and alert channel that cannot be constructed."""
    problems, made = ProblemList(), list[Any]()
    for each in (settings.notifier, *settings.notifiers.values()):
        with problems.collecting():
            made.append(make_plugin(NOTIFIER_PLUGINS, each, file, clock=SystemClock()))
    for channel in settings.alerts:
        with problems.collecting():
            made.append(make_plugin(ALERT_CHANNEL_PLUGINS, channel, file, clock=SystemClock()))
        with problems.collecting():
            check_buttons(channel, settings.gateway.inbound, file)

    async def close() -> None:
        await asyncio.gather(*(each.close() for each in made))

    asyncio.run(close())
    problems.raise_found()


def check_buttons(channel: AlertSettings, inbound: InboundSettings, file: Path | None) -> None:
    """Raise ConfigurationError if a channel has buttons that call a route which does not exist."""
    if channel.type == "slack" and channel.options.get("buttons") and not inbound.slack_secret:
        problem = "needs gateway.inbound.slack_secret and slack_team; without them it does nothing"
        raise setting_error(f"{channel.path}.buttons", problem, file)


async def build(context: Context) -> Service:
    """Make the notifiers and the alert channels that the configuration names."""
    settings, file = context.settings, context.settings_file
    default, named = load_notifiers(settings, file, context.clock, context.plugins)
    notifiers = PoolNotifiers(default, named, settings.pools, context.bus)
    channels = load_channels(settings, file, context.clock, context.plugins)
    for warning in drain_warnings(settings):
        log.warning("%s", warning)
    log.info(
        "notifier configured",
        extra={
            "notifiers": [each.name for each in notifiers.all],
            "alerts": [each.route.name for each in channels],
        },
    )
    failures = context.instruments.failures
    availability = WorkloadAvailability(context.clock, failures)
    workload = WorkloadSteps(notifiers, context.bus, context.clock, availability)
    lease = Lease(context.bus, context.clock, LEASE, context.replica)
    sinks = EventSinks(
        configured_sinks(settings, context.bus, context.clock),
        settings,
        context.bus,
        context.clock,
        lease,
        failures,
        SinkMeters(context.instruments.registry),
    )
    await sinks.prepare()

    async def close() -> None:
        for each in channels:
            await each.channel.close()
        await sinks.close()
        await notifiers.close()

    participant = workload.participant(context)
    steps = participant.consumer(NOTIFIER_STEPS)
    intake = AlertIntake(context.bus, partial(read_remaining_work, context.bus))
    publisher = NodeStatePublisher(notifiers, context.bus, context.clock)
    reports = any(isinstance(each, NodeStateReporter) for each in notifiers.all)
    return Service(
        description="Cordons, drains and uncordons in the workload system; sends alerts",
        consumers=[
            replace(steps, finish_seconds=FINISH_SECONDS),
            intake.consumer(),
            NodeList(notifiers, context.bus, context.clock).consumer(),
        ],
        tasks=[
            participant.watch,
            workload.callbacks.run,
            workload.owners.serve,
            availability.run,
            StoreWatch(context.bus, context.clock, failures, settings.nats.replicas).run,
            AlertSender(channels, context.bus, context.clock, lease, failures).run,
            sinks.run,
            StoreAlerts(channels, context.bus, context.clock, failures).run,
            partial(intake.end_without_event_for_ever, context.clock),
            *([partial(while_held, lease, context.clock, publisher.run)] if reports else []),
        ],
        endpoints={
            **WorkloadCheckEndpoint(notifiers, context.bus).endpoints,
            **NodeWorkEndpoint(notifiers, context.bus).endpoints,
            **JobNodesEndpoint(notifiers, context.bus).endpoints,
            **workload.callbacks.endpoints,
            **AlertAcknowledgement(OpenAlerts(context.bus), context.clock).endpoints,
            **AlertUpdates(OpenAlerts(context.bus), context.clock).endpoints,
        },
        close=close,
    )
