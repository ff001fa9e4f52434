"""The nine kinds of plugins: their limits, and what happens instead where one fails.

`services.primitives.plugin_boundary` keeps the limits, docs/plugins.md shows the table, and every
sentence about a plugin ends with its kind's `instead`.
"""

from typing import Final

import msgspec

from schemas.settings import (
    ALERT_CHANNEL_PLUGINS,
    AUTHENTICATOR_PLUGINS,
    AUTOSCALER_PLUGINS,
    HEALTH_CHECK_PLUGINS,
    METRICS_SOURCE_PLUGINS,
    NOTIFIER_PLUGINS,
    PROVIDER_PLUGINS,
    REMEDIATOR_PLUGINS,
    SCHEDULER_PLUGINS,
)


class PluginKind(msgspec.Struct, frozen=True, kw_only=True):
    """Declares one kind of plugins."""

    name: str
    group: str
    """The entry-point group of its packages."""
    call_seconds: float
    """The deadline of a call, where the call has none of its own."""
    block_seconds: float
    """The longest time for which a plugin may keep its thread from everything else."""
    at_once: int
    """Calls of one plugin at the same time; more wait."""
    instead: str
    """What happens while a plugin fails, as the end of a sentence."""


PROVIDER: Final = PluginKind(
    name="provider",
    group=PROVIDER_PLUGINS,
    call_seconds=60.0,
    block_seconds=30.0,
    at_once=100,
    instead="the call counts as TRANSIENT: it is repeated, and nothing is removed on its word",
)
SCHEDULER: Final = PluginKind(
    name="scheduler",
    group=SCHEDULER_PLUGINS,
    call_seconds=2.0,
    block_seconds=2.0,
    at_once=16,
    instead="the pool's own order of offerings is used",
)
NOTIFIER: Final = PluginKind(
    name="notifier",
    group=NOTIFIER_PLUGINS,
    call_seconds=120.0,
    block_seconds=30.0,
    at_once=100,
    instead="the order is repeated until its step's deadline, and no drain counts as over",
)
AUTHENTICATOR: Final = PluginKind(
    name="authenticator",
    group=AUTHENTICATOR_PLUGINS,
    call_seconds=10.0,
    block_seconds=5.0,
    at_once=100,
    instead="callers whom no earlier authenticator knows get status 503",
)
ALERT_CHANNEL: Final = PluginKind(
    name="alert channel",
    group=ALERT_CHANNEL_PLUGINS,
    call_seconds=30.0,
    block_seconds=30.0,
    at_once=2,
    instead="the alert is kept and sent again, at most once a minute; other channels go on",
)
AUTOSCALER: Final = PluginKind(
    name="autoscaler",
    group=AUTOSCALER_PLUGINS,
    call_seconds=10.0,
    block_seconds=10.0,
    at_once=1,
    instead="the pool keeps its size",
)
METRICS_SOURCE: Final = PluginKind(
    name="metrics source",
    group=METRICS_SOURCE_PLUGINS,
    call_seconds=20.0,
    block_seconds=10.0,
    at_once=16,
    instead="how many jobs wait is not known, and the pool keeps its size",
)
REMEDIATOR: Final = PluginKind(
    name="remediator",
    group=REMEDIATOR_PLUGINS,
    call_seconds=5.0,
    block_seconds=5.0,
    at_once=1,
    instead="unhealthy nodes are left to operators",
)
HEALTH_CHECK: Final = PluginKind(
    name="health check",
    group=HEALTH_CHECK_PLUGINS,
    call_seconds=60.0,
    block_seconds=60.0,
    at_once=1,
    instead="its result is unknown, and the node is not degraded for it",
)
KINDS: Final = (
    *(PROVIDER, SCHEDULER, NOTIFIER, AUTHENTICATOR, ALERT_CHANNEL),
    *(AUTOSCALER, METRICS_SOURCE, REMEDIATOR, HEALTH_CHECK),
)
"""All kinds, in the order of docs/plugins.md."""
