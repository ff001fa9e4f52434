"""What a pool's drains cannot do with the notifiers that it has."""

from typing import Final

from schemas.settings import NOTIFIER_PLUGINS, PluginSettings, PoolSpec, Settings
from services.settings.plugin_loader import plugin_class

SIMULATED_PROVIDERS: Final = frozenset({"fake", "local"})
"""Provider types whose nodes run no work of anyone."""
CHECKPOINT_SETTINGS: Final = {"webhook": "checkpoint_url", "kubernetes": "checkpoint_pods"}
"""Notifier type -> the setting without which it asks for no checkpoint."""


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


def checkpoint_warning(settings: Settings, spec: PoolSpec) -> str:
    """Which workload systems of the pool cannot ask for checkpoints; empty: all can, or none is to.

    It loads their plugins, so it is for the process that has them.
    """
    if not spec.checkpoint_timeout:
        return ""
    if spec.drain == "immediate":
        return "`checkpoint_timeout` has no effect with `drain: immediate`; remove one of them"
    named = [settings.notifiers[each] for each in spec.notifiers if each in settings.notifiers]
    unable = [each.type for each in named or [settings.notifier] if not _can_checkpoint(each)]
    if not unable:
        return ""
    return (
        f"`checkpoint_timeout` has no effect in the workload system {' and '.join(unable)}: its "
        "notifier cannot ask running work for a checkpoint; use one that can (slurm, exec; webhook "
        "with `checkpoint_url`, kubernetes with `checkpoint_pods`), or remove it"
    )


def _can_checkpoint(notifier: PluginSettings) -> bool:
    setting = CHECKPOINT_SETTINGS.get(notifier.type)
    able = hasattr(plugin_class(NOTIFIER_PLUGINS, notifier, None), "checkpoint")
    return able and (setting is None or bool(notifier.options.get(setting)))


def drain_warnings(settings: Settings) -> list[str]:
    """The warnings of all configured pools."""
    found = (
        (name, warning(settings, spec))
        for name, spec in settings.pools.items()
        for warning in (drain_warning, checkpoint_warning)
    )
    return [f"pool {name}: {warning}" for name, warning in found if warning]
