"""Builds a node's name in the workload system, by a template over its reference. Pure.

`{node}`, `{hostname}`, `{address}`, `{pool}`, `{provider_id}`, `{label.NAME}`. A part without a
value (a hostname before the agent has registered) falls back to the node's own name.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from services.notifier.workload.workload_notifier import NodeReference

LABEL: Final = "label."
_FIELDS: Final[Mapping[str, Callable[[NodeReference], str]]] = MappingProxyType(
    {
        "node": lambda each: each.node,
        "hostname": lambda each: each.hostname,
        "address": lambda each: each.address,
        "pool": lambda each: each.pool,
        "provider_id": lambda each: each.provider_id,
    }
)
_FIELD: Final = re.compile(r"\{([^{}]*)\}")


def check_template(template: str) -> None:
    """Raise ValueError for a template that names no node, or an unknown field."""
    names = _FIELD.findall(template)
    unknown = [each for each in names if each not in _FIELDS and not _label(each)]
    if unknown or not names or re.search(r"[{}]", _FIELD.sub("", template)):
        known = ", ".join(f"{{{each}}}" for each in _FIELDS)
        raise ValueError(f"node_name {template!r}: write a template of {known}, {{label.NAME}}")


def node_name(template: str, reference: NodeReference) -> str:
    """Return the workload system's name of the node."""

    def value(match: re.Match[str]) -> str:
        field = match.group(1)
        label = _label(field)
        found = reference.labels.get(label, "") if label else _FIELDS[field](reference)
        return found or reference.node

    return _FIELD.sub(value, template)


def _label(field: str) -> str:
    return field.removeprefix(LABEL) if field.startswith(LABEL) else ""
