"""Racks as units: how many nodes a rack has, and what such a pool needs."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from schemas.instance_type_catalogue import InstanceTypes
from schemas.settings import PluginSettings, PoolSpec, ProviderChoice, Settings
from services.settings.instance_type_file import OTHERS, with_shipped
from services.settings.provider_choices import GANG_MAX, Problem, whole_racks

NO_TYPE: Final = PluginSettings(type="")


def with_rack(spec: PoolSpec, settings: Settings) -> PoolSpec:
    """The pool with the size of its racks, where its instance types say it."""
    said = _said(spec, with_shipped(settings.instance_types), settings.providers)
    if spec.rack.nodes or len(said) != 1 or not (nodes := said.pop()):
        return spec
    return msgspec.structs.replace(spec, rack=msgspec.structs.replace(spec.rack, nodes=nodes))


def rack_problems(spec: PoolSpec, settings: Settings) -> Iterator[Problem]:
    """Yield what a pool of racks lacks, or has and cannot have."""
    said = _said(spec, with_shipped(settings.instance_types), settings.providers)
    if not spec.rack.nodes and len(said) > 1:
        sizes = ", ".join(map(str, sorted(said)))
        text = f"its instance types have racks of {sizes} nodes (0: none); name types of one size"
        yield ("rack", "nodes"), text
    spec = with_rack(spec, settings)
    rack = spec.rack.nodes
    if rack <= 1:
        if spec.placement.required and spec.max_nodes > GANG_MAX:
            yield ("max_nodes",), f"nodes that must be together are at most {GANG_MAX}"
        return
    if spec.nodes == "launched" and not spec.placement.required:
        remedy = "placement: {together: zone, required: true}"
        text = f"its nodes are racks of {rack}, each launched as a whole: add `{remedy}`"
        yield ("placement", "required"), text
    for key in ("min_nodes", "max_nodes"):
        nodes = getattr(spec, key)
        if nodes % rack:
            text = f"{nodes} nodes are not whole racks of {rack}; write {whole_racks(spec, nodes)}"
            yield (key,), text
    for key, used, why in (
        ("spares", spec.spares, "a spare is a single node, and racks are units here"),
        ("workload_names", spec.workload_names, "names are of single nodes, and racks are units"),
        ("idle_after", spec.idle_after, "nodes without work leave one by one, and racks are units"),
        (
            "replace_order",
            spec.replace_order == "provision_first",
            "a place in a rack is free only once its node has left; write terminate_first",
        ),
    ):
        if used:
            yield (key,), f"{why}; remove it" if key != "replace_order" else why


def _said(
    spec: PoolSpec, types: InstanceTypes, providers: Mapping[str, PluginSettings]
) -> set[int]:
    """The sizes of racks by the pool's instance types; 0: a type is a node by itself."""
    found: set[int] = set()
    for each in spec.providers or (ProviderChoice(name=spec.provider),):
        kind = providers.get(each.name, NO_TYPE).type
        name = each.instance_type or spec.instance_type
        known = {**types.types.get(kind, {}), **types.types.get(each.name, {})}
        meant = types.abstract.get(name, {})
        for one in meant.get(each.name) or meant.get(kind) or (name,):
            kept = known.get(one) or known.get(OTHERS)
            found.add(kept.rack_nodes if kept is not None else 0)
    return found
