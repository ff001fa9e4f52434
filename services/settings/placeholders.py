"""`{{.Name}}` in what new nodes are given: setup commands and user data. Pure.

Which names there are is known when the configuration is read, their values when a node is
launched; so a name that does not exist is an error of the configuration, with its line.
"""

import re
from collections.abc import Mapping
from typing import Final

SETUP_NAMES: Final = (
    *("ControlPlane", "NodeID", "Pool", "Provider", "Region", "InstanceType"),
    *("Credentials", "BusAuthority", "WorkloadName"),
)
"""What setup commands may ask for."""
USER_DATA_NAMES: Final = (*SETUP_NAMES, "AgentEnvironment", "AgentUnit", "AgentPackage")
"""What user data may ask for."""
LONG_NAMES: Final = ("Credentials", "BusAuthority", "AgentEnvironment", "AgentUnit")
"""What has several lines."""
USER_DATA_BYTES_MAX: Final = 16_384
"""Filled in; what the strictest cloud takes (AWS)."""
TEMPLATE_BYTES_MAX: Final = 12_288
AUTO: Final = "auto"
AUTO_TEMPLATE: Final = "cloud-init-agent.yaml"
"""The template of `user_data: auto`, a resource."""
UNIT: Final = "navarch-agent.service"
"""The agent's systemd unit, a resource."""
_NAME: Final = re.compile(r"{{\s*\.(\w+)\s*}}")
_ALONE: Final = re.compile(r"(?m)^([ \t]*){{\s*\.(\w+)\s*}}")


def unknown(text: str, known: tuple[str, ...]) -> tuple[int, str] | None:
    """The first name that there is not: its line, from 1, and as it is written."""
    for found in _NAME.finditer(text):
        if found.group(1) not in known:
            return text.count("\n", 0, found.start()) + 1, found.group()
    return None


def names_in(text: str) -> frozenset[str]:
    """Every name that a text asks for."""
    return frozenset(found.group(1) for found in _NAME.finditer(text))


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put the values in; every name must be there.

    Where a name begins its line, all lines of a longer value are indented as it is, so that a
    value of many lines fits into YAML's blocks.
    """

    def indented(found: re.Match[str]) -> str:
        lines = values[found.group(2)].rstrip("\n").split("\n")
        return "\n".join(found.group(1) + line if line else line for line in lines)

    return _NAME.sub(lambda found: values[found.group(1)].rstrip("\n"), _ALONE.sub(indented, text))


def problem(setting: str, text: str, known: tuple[str, ...]) -> str:
    """Return what is wrong with a text of the configuration; empty where nothing is."""
    wrong = unknown(text, known)
    if wrong is None:
        return ""
    line, name = wrong
    where = f" (line {line} of it)" if "\n" in text else ""
    there = ", ".join(f"{{{{.{each}}}}}" for each in known)
    return f"{setting} asks for {name}{where}, which there is not; there are {there}"
