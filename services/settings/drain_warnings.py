"""Warns of what a pool's drains cannot do with the notifiers that it has."""

from collections.abc import Mapping
from typing import Final

from schemas.settings import NOTIFIER_PLUGINS, PoolSpec, Settings
from services.primitives.errors import ConfigurationError
from services.settings.offering_warnings import SIMULATED_PROVIDERS
from services.settings.plugin_loader import plugin_class

CHECKPOINT_SETTINGS: Final = {"webhook": "checkpoint_url", "kubernetes": "checkpoint_pods"}
"""Notifier type -> the setting without which it asks for no checkpoint."""


GPU_CORDON_SETTINGS: Final = {
    "webhook": "cordon_gpus_url",
    "kubernetes": "gpu_cordon",
    "exec": "cordons_gpus",
}
"""Notifier type -> the setting without which it cordons no single GPU."""


def drain_warning(settings: Settings, spec: PoolSpec) -> str:
    """Return why no drain of the pool is confirmed, and what to do; empty if that was accepted."""
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
    """Return which workload systems of the pool cannot ask for checkpoints; empty: none.

    It loads their plugins, so it is for the process that has them.
    """
    if not spec.checkpoint_timeout:
        return ""
    if spec.drain == "immediate":
        return "`checkpoint_timeout` has no effect with `drain: immediate`; remove one of them"
    unable = _unable(settings, spec, "checkpoint", CHECKPOINT_SETTINGS)
    if not unable:
        return ""
    return (
        f"`checkpoint_timeout` has no effect in the workload system {' and '.join(unable)}: its "
        "notifier cannot ask running work for a checkpoint; use one that can (slurm, exec; webhook "
        "with `checkpoint_url`, kubernetes with `checkpoint_pods`), or remove it"
    )


def gpu_cordon_warning(settings: Settings, spec: PoolSpec) -> str:
    """Return which workload systems of the pool cannot cordon a GPU; empty: none.

    It loads their plugins, too.
    """
    if spec.health.cordon_scope == "node":
        return ""
    quarantines = spec.health.auto_replace and spec.budget.max_quarantined not in (0, "0%")
    if not quarantines or spec.health.remediation.type == "alert":
        return (
            "`health.cordon_scope: gpu` has no effect in a pool that quarantines no node "
            "(`auto_replace: false`, `max_quarantined: 0` or `remediation: alert`); remove it"
        )
    unable = _unable(settings, spec, "cordon_gpus", GPU_CORDON_SETTINGS)
    if not unable:
        return ""
    return (
        "`health.cordon_scope: gpu` has no effect in the workload system "
        f"{' and '.join(unable)}: its notifier cannot keep work off a single GPU, so nodes are "
        "cordoned whole; use one that can (kubernetes with `gpu_cordon`, webhook with "
        "`cordon_gpus_url`, exec with `cordons_gpus`), or remove it"
    )


def cordons_gpus(settings: Settings, spec: PoolSpec) -> bool:
    """Return whether single GPUs of a pool are cordoned; not where a notifier is missing here."""
    if spec.health.cordon_scope == "node":
        return False
    try:
        return not gpu_cordon_warning(settings, spec)
    except ConfigurationError:
        return False


def _unable(settings: Settings, spec: PoolSpec, order: str, needed: Mapping[str, str]) -> list[str]:
    """The types of the pool's notifiers that lack an order, or the setting that it needs."""
    named = [settings.notifiers[each] for each in spec.notifiers if each in settings.notifiers]
    found = []
    for each in named or [settings.notifier]:
        setting = needed.get(each.type)
        able = hasattr(plugin_class(NOTIFIER_PLUGINS, each, None), order)
        if not able or (setting is not None and not each.options.get(setting)):
            found.append(each.type)
    return found


def drain_warnings(settings: Settings) -> list[str]:
    """Return the warnings of all configured pools."""
    found = (
        (name, warning(settings, spec))
        for name, spec in settings.pools.items()
        for warning in (drain_warning, checkpoint_warning, gpu_cordon_warning)
    )
    return [f"pool {name}: {warning}" for name, warning in found if warning]
