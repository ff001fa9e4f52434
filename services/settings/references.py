"""`${NAME}` in the configuration: values that are in the environment of the process that uses them.

Options of a pool's plugins keep their references: the pool's settings are stored on the bus, and a
reference is all that may be stored of a secret. The process that loads the plugin resolves them.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from services.settings.problem_list import ProblemList
from services.settings.yaml_document import Document, Path_

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_STORED: Final = (
    ("autoscaling",),
    ("metrics",),
    ("strategy",),
    ("health", "remediation"),
    ("setup_commands",),
)
"""Places in a pool that keep their references; those of `setup_commands` are the node's shell's."""


def resolve_references(
    document: Document,
    value: Any,
    path: Path_,
    environment: Mapping[str, str],
    problems: ProblemList,
) -> Any:
    """Replace `${NAME}` by the environment's value, except in what is stored with a pool.

    A name that is not set is a problem.
    """
    if _is_stored(path):
        return value
    if isinstance(value, dict):
        return {
            key: resolve_references(document, each, (*path, key), environment, problems)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [
            resolve_references(document, each, (*path, i), environment, problems)
            for i, each in enumerate(value)
        ]
    if not isinstance(value, str):
        return value
    for name in _VARIABLE.findall(value):
        if name not in environment:
            text = f"${{{name}}} is not set; export {name} or write the value"
            problems.add(document.error(path, text))
    return _VARIABLE.sub(lambda found: environment.get(found.group(1), found.group()), value)


def named_variables(text: str) -> list[str]:
    """The names of all references in a configuration's text, comments included."""
    return _VARIABLE.findall(text)


def resolve_options(
    document: Document, options: Mapping[str, Any], path: Path_, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Resolve the references of a pool's plugin, which is at `path`."""
    problems = ProblemList()
    found = {
        key: resolve_references(document, each, (*path, key), environment, problems)
        for key, each in options.items()
    }
    problems.raise_found()
    return found


def _is_stored(path: Path_) -> bool:
    """Whether a place of the configuration is stored with its pool as it is written."""
    inside = path[2:] if path[:1] == ("pools",) else path[1:] if path[:1] == ("defaults",) else ()
    return inside in _STORED
