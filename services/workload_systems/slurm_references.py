"""Writes the name of a Slurm node as the ID of its machine, and reads it from there. Pure.

An adopted node has a name of Navarch's own form; Slurm is ordered by its own name for the node.
"""

from typing import Final

SCHEME: Final = "slurm://"


def slurm_reference(name: str) -> str:
    """Return the ID of the machine that Slurm knows by a name."""
    return f"{SCHEME}{name}"


def referenced_name(provider_id: str) -> str:
    """Return Slurm's name of a machine with this ID; empty: Slurm did not list it."""
    return provider_id.removeprefix(SCHEME) if provider_id.startswith(SCHEME) else ""
