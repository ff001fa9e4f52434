"""Names of Navarch's modules where they are text: for `python -m`, and for plugins of its own.

A wheel has `agent`, `schemas` and `services` inside the package `navarch` (`deploy/wheel`).
"""

from typing import Final

OUTSIDE: Final = __name__.removesuffix("services.primitives.module_names")
"""`navarch.` where a wheel is installed; empty in a checkout."""


def installed_name(module: str) -> str:
    """Return a module's name here, given its name in a checkout."""
    return OUTSIDE + module
