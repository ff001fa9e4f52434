"""Checks a pool of the configuration: each place in it, and what to write instead."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from schemas.duration import decode_hook, format_duration
from schemas.settings import (
    NOTIFIER_PLUGINS,
    PROVIDER_PLUGINS,
    BudgetSpec,
    FleetBudgetSpec,
    PluginSettings,
    PoolSpec,
    Settings,
)
from services.primitives.errors import ConfigurationError
from services.settings.budget_validation import (
    level_problem,
    quarantine_problem,
    rate_problem,
    rate_window_problem,
)
from services.settings.plain_values import pool_value_problems
from services.settings.plugin_loader import plugin_class
from services.settings.pool_options import per_pool_type, pool_option_names
from services.settings.provider_choices import (
    Problem,
    adopting_problem,
    interruption_problem,
    on_demand_problem,
    pool_problem,
    unknown_notifier,
    unknown_provider,
)
from services.settings.rack_validation import rack_problems
from services.settings.setup_validation import birth_problem
from services.settings.window_validation import diagnostic_problem, window_problem
from services.settings.workload_name_validation import workload_names_problem

IDLE_SECONDS_MIN: Final = 60.0
NO_WORKLOAD_SYSTEM: Final = "noop"


def own_problems(spec: PoolSpec) -> Iterator[Problem]:
    """Yield what is wrong with a pool whatever the rest of the configuration is."""
    if spec.min_nodes > spec.max_nodes:
        text = f"{spec.min_nodes} is above max_nodes {spec.max_nodes}; lower one or raise the other"
        yield ("min_nodes",), text
    for place, window in enumerate(spec.windows):
        if wrong := window_problem(window, spec.windows[:place]):
            yield ("windows", place, wrong[0]), wrong[1]
    if wrong_place := pool_problem(spec):
        yield wrong_place
    if wrong_idle := _idle_problem(spec):
        yield wrong_idle
    for found in (on_demand_problem(spec), interruption_problem(spec), _saving_problem(spec)):
        if found is not None:
            yield found
    if wrong_name := diagnostic_problem(spec.admission.diagnostic):
        yield ("admission", "diagnostic"), wrong_name
    if wrong_renewal := _renewal_problem(spec):
        yield wrong_renewal
    yield from budget_problems(spec.budget)
    yield from pool_value_problems(spec)


def _idle_problem(spec: PoolSpec) -> Problem | None:
    """Why idle nodes could not be removed as configured; None: they can, or need not."""
    if not spec.idle_after:
        return None
    if spec.idle_after < IDLE_SECONDS_MIN:
        return ("idle_after",), (
            f"{format_duration(spec.idle_after)} is shorter than what is between two jobs; write "
            f"{format_duration(IDLE_SECONDS_MIN)} or more"
        )
    for key, used, why in (
        ("autoscaling", spec.autoscaling, "the autoscaler would launch them again"),
        ("workload_names", spec.workload_names, "the workload system says which nodes leave"),
    ):
        if used:
            return ("idle_after",), f"excludes `{key}`: {why}; remove one of the two"
    return None


def _saving_problem(spec: PoolSpec) -> Problem | None:
    """Why nodes could not be replaced by cheaper ones; None: they can, or need not."""
    if not spec.consolidation.min_saving:
        return None
    least = float(spec.drain_timeout) + float(spec.launch_timeout)
    if spec.consolidation.min_age < least:
        return ("consolidation", "min_age"), (
            f"{format_duration(spec.consolidation.min_age)} is less than drain_timeout and "
            f"launch_timeout together ({format_duration(least)}); raise it"
        )
    for key, used, why in (
        ("spares", spec.spares, "a spare would take the place, whatever it costs"),
        ("workload_names", spec.workload_names, "two machines cannot have one name"),
        ("placement", spec.placement.required, "no node may be elsewhere"),
    ):
        if used:
            return ("consolidation",), f"excludes `{key}`: {why}; remove one of the two"
    return None


def idle_source_problem(spec: PoolSpec, settings: Settings) -> Problem | None:
    """A workload system of the pool that never says whether a node has work."""
    if not spec.idle_after:
        return None
    named = [settings.notifiers[each] for each in spec.notifiers if each in settings.notifiers]
    for each in named or [settings.notifier]:
        try:
            plugin = plugin_class(NOTIFIER_PLUGINS, each, None)
        except ConfigurationError:
            continue  # the notifier itself is wrong, which is reported
        if each.type != NO_WORKLOAD_SYSTEM and not hasattr(plugin, "reports_running"):
            return ("idle_after",), (
                f"needs a workload system that says what runs on a node in service, and the "
                f"notifier {each.type!r} does not; remove it"
            )
    return None


def _renewal_problem(spec: PoolSpec) -> Problem | None:
    """Why healthy nodes could not be replaced as configured; None: they can, or need not."""
    least = float(spec.drain_timeout) + float(spec.launch_timeout)
    if spec.expire_after and spec.expire_after < least:
        return ("expire_after",), (
            f"{format_duration(spec.expire_after)} is less than drain_timeout and launch_timeout "
            f"together ({format_duration(least)}): some node would always be leaving; raise it"
        )
    for key, used in (
        ("expire_after", spec.expire_after),
        ("drift", spec.drift == "replace"),
        ("consolidation", spec.consolidation.min_saving),
    ):
        if used and not spec.health.auto_replace:
            return (key,), (
                "replaces nodes, and health.auto_replace is false; remove one of the two"
            )
    if spec.driver_version and spec.drift == "ignore":
        return ("driver_version",), "is compared only with `drift: report` or `replace`; add one"
    return None


def budget_problems(budget: BudgetSpec | FleetBudgetSpec) -> Iterator[Problem]:
    """Yield what is wrong with a budget, of a pool or of the fleet."""
    for key, problem in (
        ("max_unavailable", level_problem(budget.max_unavailable)),
        ("max_replacements", rate_problem(budget.max_replacements)),
        ("max_resets", "" if budget.max_resets is None else rate_problem(budget.max_resets)),
        (
            "max_voluntary",
            "" if budget.max_voluntary is None else rate_problem(budget.max_voluntary),
        ),
        *(
            (key, quarantine_problem(value))
            for key in ("max_quarantined", "cordon_floor")
            if (value := getattr(budget, key, None)) is not None
        ),
        ("window", rate_window_problem(budget.window)),
    ):
        if problem:
            yield ("budget", key), problem


def reference_problems(spec: PoolSpec, settings: Settings, directory: Path) -> Iterator[Problem]:
    """Yield what does not fit the other sections, or the files of `directory`."""
    for wrong in (
        unknown_provider(spec, settings.providers)
        or adopting_problem(spec, settings.providers, settings.mode),
        option_problem(spec, settings.providers),
        unknown_notifier(spec, settings.notifiers),
        idle_source_problem(spec, settings),
        workload_names_problem(spec, settings.pools.values()),
        birth_problem(spec, settings.nats, directory),
    ):
        if wrong:
            yield wrong
    yield from rack_problems(spec, settings)


def option_problem(spec: PoolSpec, providers: Mapping[str, PluginSettings]) -> Problem | None:
    """Options of an entry that its provider has not, or takes from no pool."""
    for number, each in enumerate(spec.providers):
        if each.options and each.name in providers:
            try:
                plugin = plugin_class(PROVIDER_PLUGINS, providers[each.name], None)
            except ConfigurationError:
                return None  # the provider itself is wrong, which is reported
            known = pool_option_names(plugin)
            for name in sorted(each.options.keys() - known):
                some = ", ".join(sorted(known)) or "none"
                text = f"is no option that a pool may set for {each.name!r} (those are: {some})"
                return ("providers", number, "options", name), text
            try:
                msgspec.convert(each.options, per_pool_type(plugin), dec_hook=decode_hook)
            except ValueError as error:
                return ("providers", number, "options"), str(error)
    return None
