"""Warns of what a pool asks for and probably will not get: offerings, sizes, time, agents.

Pure.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from schemas.duration import Duration, format_duration
from schemas.instance_type_catalogue import DRIVER_WAIT, InstanceTypes
from schemas.launch_offers import Offer
from schemas.settings import PluginSettings, PoolSpec, Settings
from services.primitives.errors import ConfigurationError
from services.settings.provider_choices import choices_of

OTHERS: Final = "*"
SIMULATED_PROVIDERS: Final = frozenset({"fake", "local"})
"""Provider types whose nodes run no work of anyone, and load no driver."""
NEEDS_ZONES: Final = frozenset({"gcp"})
RESERVATION: Final = {
    "aws": "capacity_reservation",
    "azure": "capacity_reservation_group",
    "gcp": "reservation",
}
"""Provider type -> its option that names what is reserved."""
METRICS_LINES: Final = {
    "slurm": "metrics: {type: slurm}",
    "kubernetes": "metrics: {type: kubernetes}",
    "ray": 'metrics: {type: ray, dashboard: "http://HEAD:8265"}',
}
"""Notifier type -> the line that has the same workload system count the jobs that wait."""
OTHER_METRICS_LINE: Final = 'metrics: {type: http, url: "https://HOST/load"}'
ORIGINAL_AGENT: Final = re.compile(
    r"NavarchProject/navarch\b|(?<=/)navarch-node(?:-linux-\w+)?(?![\w=:.-])", re.IGNORECASE
)
"""How commands fetch or start the agent of the original: not the node's label `navarch-node`."""


def schedule_warnings(settings: Settings) -> Iterator[str]:
    """One sentence for each size that the pool will not have."""
    for name, spec in settings.pools.items():
        for key, size in _sizes(spec.autoscaling):
            if not spec.min_nodes <= size <= spec.max_nodes:
                where = f"min_nodes {spec.min_nodes} to max_nodes {spec.max_nodes}"
                yield (
                    f"pool {name}: its schedule has {key} {size}, and the pool stays within "
                    f"{where}; change one of them"
                )


def queue_warnings(settings: Settings) -> Iterator[str]:
    """Yield a warning for each pool whose autoscaler counts jobs that no source reports."""
    for name, spec in settings.pools.items():
        if spec.metrics is not None:
            continue
        if any(each.get("type") == "queue" for each in _autoscalers(spec.autoscaling)):
            named = [settings.notifiers.get(each) for each in spec.notifiers]
            kinds = [each.type for each in named if each] or [settings.notifier.type]
            lines = [METRICS_LINES[each] for each in kinds if each in METRICS_LINES]
            [line, *_] = [*lines, OTHER_METRICS_LINE]
            yield (
                f"pool {name}: the autoscaler `queue` counts waiting jobs, and no `metrics` says "
                f"how many wait, so it changes nothing; add `{line}` to the pool"
            )


def setup_warnings(settings: Settings, templates: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each pool that installs the agent of the original.

    `templates`: pool -> its template of user data, of those that have one.
    """
    package = settings.agent.package or "PACKAGE"
    for name, spec in settings.pools.items():
        texts = {"setup_commands": spec.setup_commands, "user_data": (templates.get(name, ""),)}
        for key, written in texts.items():
            if not any(ORIGINAL_AGENT.search(each) for each in written):
                continue
            yield (
                f"pool {name}: its {key} installs the original's agent `navarch-node`, "
                "which cannot register here; write `python3 -m pip install "
                f"'{package}'` and a unit that runs `navarch-agent` with NAVARCH_NATS_URL="
                "{{.ControlPlane}} NAVARCH_POOL={{.Pool}} NAVARCH_NODE={{.NodeID}} "
                "(docs/providers.md), or `user_data: auto` in its place"
            )


def _autoscalers(raw: Any) -> Iterator[dict[str, Any]]:
    """Each autoscaler of a pool, at any depth; what is of another kind is reported elsewhere."""
    if not isinstance(raw, dict):
        return
    yield raw
    for period in _dicts(raw.get("schedule")):
        yield from _autoscalers(period.get("autoscaler"))
    yield from _autoscalers(raw.get("fallback"))
    for each in _dicts(raw.get("autoscalers")):
        yield from _autoscalers(each)


def _sizes(raw: Any) -> Iterator[tuple[str, int]]:
    """Each size of a schedule."""
    for each in _autoscalers(raw):
        for period in _dicts(each.get("schedule")):
            for key in ("nodes", "min_nodes", "max_nodes"):
                if type(period.get(key)) is int:
                    yield key, period[key]


def _dicts(listed: Any) -> list[dict[str, Any]]:
    return [each for each in listed or () if isinstance(each, dict)]


def offering_warnings(settings: Settings, types: InstanceTypes) -> Iterator[str]:
    """Yield the warnings of all pools."""
    for name, spec in settings.pools.items():
        found: dict[str, None] = {}
        launched = choices_of(spec) if spec.nodes == "launched" else ()
        for offer in (offer for choice in launched for offer in choice.offers):
            configured = settings.providers.get(offer.provider, PluginSettings(type=""))
            kind = configured.type
            found[_type_warning(offer, kind, types)] = None
            found[_zone_warning(spec, offer, kind)] = None
            found[_reservation_warning(offer, configured)] = None
        yield from (f"pool {name}: {warning}" for warning in found if warning)


def driver_warnings(settings: Settings, types: InstanceTypes) -> Iterator[ConfigurationError]:
    """Yield one warning for each pool whose launches end before its nodes' drivers are given up."""
    for name, spec in settings.pools.items():
        launched = choices_of(spec) if spec.nodes == "launched" else ()
        waits = [
            wait
            for choice in launched
            for offer in choice.offers
            for wait in _driver_waits(offer, _kind_of(settings, offer), types)
        ]
        if not waits or (longest := max(waits))[0] < spec.launch_timeout:
            continue
        seconds, provider, kind = longest
        yield ConfigurationError(
            f"{format_duration(spec.launch_timeout)} does not exceed the `driver_wait` of "
            f"{format_duration(seconds)} that nodes of {kind} have, so a launch ends before its "
            "boot checks say that the driver is missing; raise it above that, or lower "
            f"`driver_wait` under `instance_types: types: {provider}: {kind}:`",
            key=f"pools.{name}.launch_timeout",
        )


def _driver_waits(
    offer: Offer, kind: str, types: InstanceTypes
) -> Iterator[tuple[Duration, str, str]]:
    """Each type that an offer means: the time of its driver, the key that has it, its name."""
    if kind in SIMULATED_PROVIDERS:
        return
    meant = types.abstract.get(offer.instance_type, {})
    for name in meant.get(offer.provider) or meant.get(kind) or (offer.instance_type,):
        for key in (offer.provider, kind):
            known = types.types.get(key, {})
            if spec := known.get(name, known.get(OTHERS)):
                yield spec.driver_wait, key, name
                break
        else:
            yield DRIVER_WAIT, kind, name


def _kind_of(settings: Settings, offer: Offer) -> str:
    return settings.providers.get(offer.provider, PluginSettings(type="")).type


def _type_warning(offer: Offer, kind: str, types: InstanceTypes) -> str:
    wanted = offer.instance_type
    known = types.types.get(offer.provider, {}) | types.types.get(kind, {})
    if not known or OTHERS in known or wanted in known:
        return ""
    if meant := types.abstract.get(wanted):
        if meant.get(offer.provider) or meant.get(kind):
            return ""
        return (
            f"provider {offer.provider} has no type for {wanted!r}, so it launches none; name one "
            "under `providers:` of the pool, or under `instance_types: abstract:`"
        )
    near = get_close_matches(wanted, [*known, *types.abstract], 1)
    meant_type = f"; did you mean {near[0]}?" if near else ""
    return (
        f"instance type {wanted!r} of provider {offer.provider} is not in the catalogue, so its "
        f"GPUs and price are unknown{meant_type or '; add it under `instance_types: types:`'}"
    )


def _reservation_warning(offer: Offer, configured: PluginSettings) -> str:
    option = RESERVATION.get(configured.type, "")
    if offer.market != "reserved" or ":" in configured.type or configured.options.get(option):
        return ""
    remedy = f"set its `{option}`" if option else "take the market out"
    return f"provider {offer.provider} names no reserved capacity, so it launches none; {remedy}"


def _zone_warning(spec: PoolSpec, offer: Offer, kind: str) -> str:
    if kind not in NEEDS_ZONES or offer.zones:
        return ""
    where = "the entry of `providers:`" if spec.providers else "the pool"
    return f"provider {offer.provider} launches nothing without a zone; add `zones` to {where}"
