"""The host's RDMA devices, from /sys: InfiniBand, RoCE and EFA."""

from pathlib import Path
from typing import Final

ACTIVE: Final = "ACTIVE"


def devices_up(sys: Path) -> tuple[str, ...]:
    """Return the names of the devices that have an active port."""
    found: dict[str, None] = {}
    for state in sorted(sys.glob("class/infiniband/*/ports/*/state")):
        try:
            up = state.read_text(encoding="ascii").strip().endswith(f": {ACTIVE}")
        except (OSError, ValueError):
            continue
        if up:
            found[state.parents[2].name] = None
    return tuple(found)
