"""How many nodes may be out of service at once. Pure."""

import math


def limit(max_unavailable: int | str, desired: int) -> int:
    """Nodes that may be out of service in a pool of `desired`; at least one, or nothing repairs."""
    if isinstance(max_unavailable, int):
        return max_unavailable
    share = float(max_unavailable.removesuffix("%")) / 100
    return max(1, math.ceil(desired * share - 1e-9))
