"""Declares what Slurm is ordered to do, by commands or slurmrestd, and how that fails."""

from typing import Final, Literal

import msgspec

DENIED: Final = ("Access/permission denied", "Invalid user id")
"""What Slurm says to a user who lacks a right."""

NodeOrder = Literal["", "DRAIN", "DOWN", "RESUME", "POWER_DOWN_FORCE"]


class SlurmUnavailableError(Exception):
    """slurmctld does not answer; it is asked again."""


class SlurmRefusedError(Exception):
    """Slurm refused an order; its message says why."""


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what changes of a node; what is empty stays."""

    state: NodeOrder = ""
    reason: str = ""
    address: str = ""
    hostname: str = ""
