"""Finds the evidence of outages: stored, or assembled for one that has not ended."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from schemas.evidence_bundles import (
    EvidenceBundle,
    EvidenceDescription,
    KeptEvidence,
    read_description,
)
from schemas.topology import EVIDENCE
from services.bus.port import Bus, ObjectInfo
from services.metrics.evidence import stored_evidence
from services.metrics.evidence.evidence_content import bundle
from services.metrics.evidence.outages import open_ending, recovered_ending
from services.primitives.errors import NavarchError

CAPTURE: Final = ".capture"


async def find_evidence(bus: Bus, node: str, saga: str = "") -> EvidenceBundle:
    """The evidence of a node's newest outage, or of the one that a saga ended.

    For an outage that has not ended, the bundle is assembled from what is stored now.
    """
    about = [(at, each) for at, each in described(await bus.objects(EVIDENCE)) if each.node == node]
    captured = next(((at, each) for at, each in about if is_capture(at)), None)
    ended = [(at, each) for at, each in about if not is_capture(at)]
    if saga:
        named = [(at, each) for at, each in ended if each.saga == saga]
        if not named:
            raise no_evidence(node, saga, [each.saga for _, each in ended])
        ended = named
    if captured and not saga and (not ended or captured[0].time > ended[-1][0].time):
        pool = captured[1].pool
        kept, _ = await stored_evidence.stored_capture(bus, pool, node)
        pools = stored_evidence.PoolLog(bus)
        history = await stored_evidence.read_history(bus, pools, pool, node, ())
        current = open_ending(history)
        if current is None and kept is not None and not ended:
            current = recovered_ending(kept)
        if current is not None:
            return bundle(history, kept, current)
    if not ended:
        raise no_evidence(node)
    found = await stored_evidence.stored_bundle(bus, ended[-1][0].name)
    assert found is not None
    return found


def no_evidence(node: str, saga: str = "", sagas: Sequence[str] = ()) -> NavarchError:
    """Return the error that there is no evidence about a node, or about its outage of a saga."""
    if saga:
        there = ", ".join(sagas) or "none"
        return NavarchError(
            f"no evidence of an outage of {node} that saga {saga!r} ended; sagas: {there}"
        )
    return NavarchError(
        f"no evidence about a node {node!r}: it was never unhealthy, lost or replaced, or its "
        "evidence has expired; `navarch evidence` lists all evidence"
    )


def described(kept: Iterable[ObjectInfo]) -> list[tuple[ObjectInfo, EvidenceDescription]]:
    """The objects that say what outage they are about."""
    found = ((each, read_description(each.metadata)) for each in kept)
    return [(each, about) for each, about in found if about is not None]


def outages(kept: Sequence[ObjectInfo]) -> list[tuple[ObjectInfo, EvidenceDescription]]:
    """Return one object for each outage: its bundle, or the capture of one without a bundle."""
    readable = described(kept)
    complete = {(about.node, about.unhealthy_at) for e, about in readable if not is_capture(e)}
    return [
        (each, about)
        for each, about in readable
        if not is_capture(each)
        or (
            about.outcome in ("open", "recovered")
            and (about.node, about.unhealthy_at) not in complete
        )
    ]


def kept_evidence(kept: Sequence[ObjectInfo]) -> tuple[list[KeptEvidence], int]:
    """Each outage of which evidence is kept, oldest first; and how many objects are of none."""
    found = [
        KeptEvidence(
            name=each.name,
            bytes=each.size_bytes,
            time=each.time,
            **msgspec.structs.asdict(about),
        )
        for each, about in outages(kept)
    ]
    return found, len(kept) - len(described(kept))


def is_capture(info: ObjectInfo) -> bool:
    """Return whether an object is the capture from the start of an outage, not a full bundle."""
    return info.name.endswith(CAPTURE)
