"""Fault signatures, and what nodes of one incident have in common. Pure."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final

from schemas.enums import NVLINK5_CODES, NVLINK_CODE, IncidentScope
from schemas.node_records import NodeRecord

SILENCE: Final = "silence"
"""Fault signature of a node whose heartbeats stopped and that has no other fault."""

EXPIRED: Final = "expired"
"""In place of a fault: a healthy node is replaced for its age."""
DRIFTED: Final = "drifted"
"""The same: it was launched with other settings than its pool has now."""
CONSOLIDATED: Final = "consolidated"
"""The same: another one is much cheaper now."""
DRILL: Final = "drill"
"""Begins the fault signatures of drills: `drill-xid-79`."""
RENEWALS: Final = frozenset({EXPIRED, DRIFTED, CONSOLIDATED})

RACK: Final = "rack"
"""The same: its rack is replaced as a whole."""
RACKS: Final = "fabric_faults"
"""Fault signature of faults of the NVLink fabric in many racks at once, whatever their codes."""

OFF_THE_BUS: Final = frozenset({"fallen_off_bus", "gpu_lost", "xid-79"})
"""Fault signatures of a GPU that the host does not see any more."""
CONTAINED: Final = "xid-94"
"""Fault signature of an uncorrectable memory error that was contained to one program."""

FATAL_KINDS: Final = frozenset({"fallen_off_bus", "gpu_lost", "gpu_count", "ecc_dbe", "probe_hung"})
"""Kinds of faults after which NVML says that a GPU cannot go on."""
FATAL_XIDS: Final = frozenset({46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 158, 159})
"""Codes after which the driver says so: the GPU is lost, or needs its reset."""


def is_fatal(kind: str, code: int) -> bool:
    """Return whether the kernel or NVML calls a fault fatal, whatever a rule makes of it."""
    return kind in FATAL_KINDS or (kind == "xid" and code in FATAL_XIDS)


_FABRIC_KINDS: Final = frozenset({"fabric", "nvlink", "sxid"})


def is_of_fabric(kind: str, code: int) -> bool:
    """Return whether a fault may be the NVLink fabric's, which the nodes of a rack share."""
    return kind in _FABRIC_KINDS or (
        kind == "xid" and (code == NVLINK_CODE or code in NVLINK5_CODES)
    )


def called(kind: str, code: int, *, drill: bool = False) -> str:
    """Return the fault signature of a kind and a code: `xid-79`, or `drill-xid-79` of a drill.

    Empty where the kind is empty, of what is no drill.
    """
    what = f"{kind}-{code}" if kind and code else kind
    return f"{DRILL}-{what}" if drill else what


def is_of_drill(what: str) -> bool:
    """Return whether a fault signature is a drill's."""
    return what.startswith(f"{DRILL}-")


def in_words(what: str) -> str:
    """Display form of a fault signature: `XID 79`, `fallen off bus`, `silence`."""
    if is_of_drill(what):
        return f"drill of {in_words(what.removeprefix(f'{DRILL}-'))}"
    kind, _, code = what.partition("-")
    shown = kind.upper() if kind in ("xid", "sxid") else kind.replace("_", " ")
    return f"{shown} {code}".strip()


def _provider(node: NodeRecord) -> str:
    return node.launch.provider if node.launch else ""


SHARED: Final[Mapping[IncidentScope, Callable[[NodeRecord], str]]] = {
    "rack": attrgetter("rack"),
    "zone": attrgetter("zone"),
    "driver": attrgetter("driver_version"),
    "provider": _provider,
    "job": attrgetter("health_job"),
    "pool": lambda _: "",
}
"""Scope -> reads its value from a node's record."""


def shared(node: NodeRecord, scope: IncidentScope) -> str:
    """Return a node's value of a scope; empty: unknown, or the scope `pool`."""
    return SHARED[scope](node)
