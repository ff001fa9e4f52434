"""Where a pool says that its nodes come from: checked, in one form, and as a launch has it. Pure.

Each finding is the place in the pool and a sentence with the remedy.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from schemas.launch_offers import Choice, Market, Markets, Offer
from schemas.placement_settings import PlacementSpec
from schemas.settings import Mode, PluginSettings, PoolSpec, ProviderChoice
from services.settings.budget_validation import level_problem

Problem = tuple[tuple[str | int, ...], str]


REMOVING: Final = "kubernetes"
"""The provider type whose nodes others make and make again, once `removal` has one removed."""
LASTING: Final = "slurm"
"""The provider type whose nodes others made, and nothing makes again."""
ADOPTING: Final = (REMOVING, LASTING)
"""Provider types whose nodes are adopted; a plugin (`module:Class`) may be another."""
ENROLLING: Final = "enrolled"
"""The provider type of machines that join with a token; the `nodes` of its pools have its name."""
ONE_PLACE: Final = ("provider", "region", "zones")
"""What a pool says of its only provider."""


GANG_MAX: Final = 200
"""Nodes that are launched together in one decision."""
INTERRUPTION_SECONDS_MIN: Final = 60.0
INTERRUPTION_SECONDS_MAX: Final = 7 * 86_400.0
GATHER_SECONDS_MIN: Final = 30.0
GATHER_SLACK_SECONDS: Final = 30.0
"""By so much less than a launch may take, so that a gang ends before its launches expire."""
LAUNCHES: Final = (
    *("providers", "market", "on_demand_min", "max_price", "spend_cap", "placement", "zones"),
    *("ssh_keys", "setup_commands", "user_data", "autoscaling", "metrics", "spares"),
    *("idle_after", "interruption_penalty", "consolidation"),
)
"""What only a pool has whose nodes Navarch launches."""
REPLACES: Final = ("expire_after", "drift", "rack")
"""What only a pool has whose nodes can be replaced."""


def with_defaults(defaults: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pool's settings with defaults for the rest, except for where its nodes come from."""
    instead = ONE_PLACE if "providers" in said else ("providers",) if "provider" in said else ()
    return {**{key: each for key, each in defaults.items() if key not in instead}, **said}


def on_demand_problem(spec: PoolSpec) -> Problem | None:
    """Return why a pool cannot keep so many nodes on demand or reserved as it says."""
    least = spec.on_demand_min
    if least == 0:
        return None
    place = ("on_demand_min",)
    if wrong := level_problem(least):
        return place, wrong
    named = [each.market or spec.market for each in spec.providers] or [spec.market]
    if not any("spot" in _in_order(each) for each in named):
        return place, "no node is spot anyway; add `market: spot` to the pool, or remove it"
    if isinstance(least, int) and least > spec.max_nodes:
        return place, f"{least} is above max_nodes {spec.max_nodes}; lower one or raise the other"
    for key, used, why in (
        ("spares", spec.spares, "a spare takes any node's place, on whatever market it is"),
        ("workload_names", spec.workload_names, "the workload system chooses which nodes leave"),
        ("placement", spec.placement.required, "one job has all nodes: it ends with the first"),
    ):
        if used:
            return place, f"excludes `{key}`: {why}; remove one of the two"
    return None


def interruption_problem(spec: PoolSpec) -> Problem | None:
    """Return why interruptions could not be remembered as a pool says."""
    after = float(spec.interruption_penalty)
    if not after or INTERRUPTION_SECONDS_MIN <= after <= INTERRUPTION_SECONDS_MAX:
        return None
    return ("interruption_penalty",), (
        "must be between 1m and 7d, after which an interruption counts half; write 6h, or 0s for "
        "none"
    )


def whole_racks(spec: PoolSpec, nodes: int) -> int:
    """Return a number of nodes, rounded up to whole racks where racks are units."""
    rack = max(spec.rack.nodes, 1)
    return -(-nodes // rack) * rack


def pool_problem(spec: PoolSpec) -> Problem | None:
    """Return what is wrong with a pool's provider, or providers."""
    wrong = _adopted_problem(spec) if spec.nodes != "launched" else None
    if wrong := wrong or _placement_problem(spec):
        return wrong
    if not spec.providers:
        if not spec.provider:
            return (), "`provider` is missing; add it, or several under `providers`"
        if not spec.instance_type and spec.nodes == "launched":
            return (), "`instance_type` is missing; add it"
        return None
    if spec.provider:
        return ("provider",), "excludes `providers`; keep one of them"
    for key in ("region", "zones"):
        if getattr(spec, key):
            return (key,), "means one provider; name regions and zones under each of `providers`"
    options: dict[str, dict[str, Any]] = {}
    for number, each in enumerate(spec.providers):
        if options.setdefault(each.name, each.options) != each.options:
            return ("providers", number, "options"), (
                f"differ from those of another entry of {each.name}; add a second provider of its "
                "type under `providers:` of the fleet"
            )
        if not (each.instance_type or spec.instance_type):
            return ("providers", number), (
                "`instance_type` is missing; add it here, or for all of them to the pool"
            )
    return None


def _placement_problem(spec: PoolSpec) -> Problem | None:
    """Why a pool's nodes cannot be kept together as required."""
    placement = spec.placement
    if not placement.required:
        return None
    if not placement.together:
        return ("placement", "required"), "needs `together: zone` or `together: region` beside it"
    zones = [each.zones for each in spec.providers] or [spec.zones]
    if placement.together == "zone" and not all(zones):
        place = ("providers", [bool(each) for each in zones].index(False)) if spec.providers else ()
        return (*place, "zones"), (
            "a provider that chooses the zone itself keeps no nodes together; name its zones"
        )
    longest = float(spec.launch_timeout) - GATHER_SLACK_SECONDS
    if not GATHER_SECONDS_MIN <= float(placement.gather) <= longest:
        return ("placement", "gather"), (
            f"must be between {GATHER_SECONDS_MIN:.0f}s and launch_timeout less "
            f"{GATHER_SLACK_SECONDS:.0f}s, which is {longest:.0f}s"
        )
    return None


def _adopted_problem(spec: PoolSpec) -> Problem | None:
    return _launching_problem(spec, (*LAUNCHES, *(REPLACES if spec.nodes == ENROLLING else ())))


def _launching_problem(spec: PoolSpec, keys: Iterable[str]) -> Problem | None:
    """What a pool says of launches, though it has none."""
    nothing = PoolSpec(min_nodes=0, max_nodes=0)
    for key in keys:
        if getattr(spec, key) != getattr(nothing, key):
            return (key,), f"is of launches, and nodes of this pool are {spec.nodes}; remove it"
    return None


def folded(spec: PoolSpec) -> PoolSpec:
    """Return the pool with its providers in order, the first of them as *the* provider."""
    if not spec.providers:
        return spec
    ordered = tuple(sorted(spec.providers, key=lambda each: each.priority))
    first = ordered[0]
    return msgspec.structs.replace(
        spec,
        providers=ordered,
        provider=first.name,
        instance_type=spec.instance_type or first.instance_type,
    )


def unknown_provider(spec: PoolSpec, known: Collection[str]) -> Problem | None:
    """A provider of the pool that the configuration does not have."""
    named = [(("provider",), spec.provider)] if not spec.providers else []
    places: list[tuple[tuple[str | int, ...], str]] = [*named]
    places += [(("providers",), each.name) for each in spec.providers]
    for place, name in places:
        if name and name not in known:
            there = ", ".join(known) or "none"
            return place, f"no provider {name!r} under `providers:` (known: {there}); add it"
    return None


def adopting_problem(
    spec: PoolSpec, providers: Mapping[str, PluginSettings], mode: Mode
) -> Problem | None:
    """A pool that launches at a provider that only adopts, or the reverse; `mode`: the fleet's."""
    configured = providers.get(spec.provider, PluginSettings(type=""))
    kind = configured.type
    if (kind == ENROLLING) != (spec.nodes == ENROLLING):
        return ("nodes",), (
            f"the provider type `{ENROLLING}` and `nodes: {ENROLLING}` belong together: machines "
            "join such a pool with a token; write both, or neither"
        )
    if kind in ADOPTING and spec.nodes == "launched":
        return ("provider",), "launches nothing: add `nodes: adopted` to the pool"
    acts = "observe" not in (mode, spec.mode)
    if kind == LASTING and (wrong := _launching_problem(spec, REPLACES)):
        return wrong
    if kind == REMOVING and acts and not configured.options.get("removal"):
        return ("provider",), (
            f"{spec.provider!r} has no `removal`, so no node can be replaced; set it to "
            "node-claim, auto-scaling-group or node-object, or add `mode: observe` to the pool"
        )
    if spec.nodes == "adopted" and ":" not in kind and kind not in ADOPTING:
        return ("nodes",), f"provider {spec.provider!r} launches its nodes; remove `nodes: adopted`"
    return None


def unknown_notifier(spec: PoolSpec, known: Collection[str]) -> Problem | None:
    """A notifier of the pool that the configuration does not have."""
    for name in spec.notifiers:
        if name not in known:
            there = ", ".join(known) or "none"
            return ("notifiers",), f"no {name!r} under `notifiers:` (known: {there}); add it there"
    return None


def choice_of(spec: PoolSpec, avoid: Collection[str] = (), *, not_spot: bool = False) -> Choice:
    """The pool's providers and how to choose among them.

    `avoid`: zones that come last, because hardware from there was refused. `not_spot`: of each
    provider what is not spot, which is on demand where the pool names nothing else.
    """
    named = spec.providers or (
        ProviderChoice(
            name=spec.provider,
            regions=(spec.region,) if spec.region else (),
            zones=spec.zones,
        ),
    )
    first = _in_order(spec.market)
    ranked = [
        (first.index(market) if market in first else rank, _offer(spec, each, market, avoid))
        for each in named
        for rank, market in enumerate(_markets(each.market or spec.market, not_spot=not_spot))
    ]
    offers = tuple(offer for _, offer in sorted(ranked, key=lambda each: each[0]))
    wants_spot = any(each.market == "spot" for each in offers)
    return Choice(
        offers=offers,
        strategy=spec.strategy.type,
        strategy_options=spec.strategy.options,
        fallback_seconds=float(spec.fallback_after) if wants_spot else 0.0,
        spend_cap=spec.spend_cap,
        placement_group=spec.placement.group,
        together=spec.placement.together,
        required=spec.placement.required,
        interruption_seconds=float(spec.interruption_penalty) if wants_spot else 0.0,
    )


def choices_of(spec: PoolSpec) -> tuple[Choice, ...]:
    """Return what a pool's launches choose from: those that must not be spot choose from less."""
    others = (choice_of(spec, not_spot=True),) if spec.on_demand_min else ()
    return choice_of(spec), *others


def says_more(spec: PoolSpec) -> bool:
    """Return whether a launch needs more than one provider, its type, region and zones."""
    return bool(
        spec.providers
        or spec.strategy.type != "priority"
        or spec.market
        or spec.max_price
        or spec.spend_cap
        or spec.interruption_penalty
        or spec.consolidation.min_saving
        or spec.placement != PlacementSpec()
    )


def _in_order(markets: Markets) -> tuple[Market | Literal[""], ...]:
    """Markets in order of preference, each once; empty: the provider's own."""
    named = (markets,) if isinstance(markets, str) else markets
    return tuple(dict.fromkeys(named)) or ("",)


def _markets(markets: Markets, *, not_spot: bool) -> tuple[Market | Literal[""], ...]:
    named = _in_order(markets)
    if not not_spot:
        return named
    return tuple(each for each in named if each and each != "spot") or ("on-demand",)


def _offer(
    spec: PoolSpec, named: ProviderChoice, market: Market | Literal[""], avoid: Collection[str]
) -> Offer:
    return Offer(
        provider=named.name,
        instance_type=named.instance_type or spec.instance_type,
        regions=named.regions,
        zones=tuple(sorted(named.zones, key=lambda zone: zone in avoid)),
        market=market,
        options=named.options,
        max_price=named.max_price or spec.max_price,
    )
