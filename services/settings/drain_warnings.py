"""Whether a pool's nodes are terminated without a check that their work has finished. Pure."""

from typing import Final

from schemas.settings import PoolSpec, Settings

SIMULATED_PROVIDERS: Final = frozenset({"fake", "local"})
"""Provider types whose nodes run no work of anyone."""


def drain_warning(settings: Settings, spec: PoolSpec) -> str:
    """Why no drain of the pool is confirmed, and what to do; empty if that was accepted."""
    notifiers = [settings.notifiers[each] for each in spec.notifiers if each in settings.notifiers]
    asked_nothing = [
        each
        for each in notifiers or [settings.notifier]
        if each.type == "noop" and not each.options.get("accept_no_drain")
    ]
    if not asked_nothing:
        return ""
    names = [each.name for each in spec.providers] or [spec.provider]
    types = {settings.providers[name].type for name in names if name in settings.providers}
    if types <= SIMULATED_PROVIDERS:
        return ""
    return (
        "the notifier `noop` asks no workload system whether work is left, so every drain ends at "
        "once and nodes are terminated with their work; configure `notifier: {type: webhook}`, or "
        "accept it: `notifier: {type: noop, accept_no_drain: true}`"
    )


def drain_warnings(settings: Settings) -> list[str]:
    """The warnings of all configured pools."""
    found = ((name, drain_warning(settings, spec)) for name, spec in settings.pools.items())
    return [f"pool {name}: {warning}" for name, warning in found if warning]
