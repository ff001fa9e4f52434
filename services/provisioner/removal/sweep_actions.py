"""A sweep compares these values, and does one of these things about a difference. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

from schemas.instance_records import InstanceRecord
from schemas.machine_identity import MachineIdentity
from schemas.node_records import NodeRecord
from services.provisioner.provider_client.provider import Capabilities, Instance

SweepKind = Literal[
    "remove-unexpected",
    "remove-surplus",
    "remove-late",
    "retry-surplus",
    "retry-removal",
    "confirm-removal",
    "end-launch",
    "adopt-instance",
    "restore-record",
    "correct-id",
    "note-unclear",
    "doubt-id",
    "mark-listed",
    "mark-unlisted",
    "mark-down",
    "mark-up",
    "keep-orphan",
    "keep-unnamed",
    "orphan-departed",
    "adopt-orphan",
    "terminate-orphan",
    "forget-instance",
    "adopt-joined",
    "retire-joined",
]
"""remove-unexpected: propose to remove an instance without a record, or with one that is over.
remove-surplus: propose to remove an instance beside the one that serves.
remove-late: an instance that the order of a record means came after the removal was confirmed.
retry-surplus: an instance beside that of a record was ordered to go.
retry-removal, confirm-removal: a removal is overdue, and its instance is listed, or is not.
end-launch: a launch has no instance, and its node is gone: its record was rolled back.
adopt-instance: record the instance of an unfinished launch.
restore-record: write the record of a node in service, or of one whose instance others removed.
correct-id: a node's only machine is listed under another ID than its record has.
note-unclear: several machines have one name, and which of them is the node is not known.
doubt-id: the list shows a record's ID under the name of another node.
mark-listed, mark-unlisted: a running instance's record must say whether its provider lists it.
mark-down, mark-up: and whether it runs, as its provider reports.
keep-orphan: record an instance that a lost store knew, and leave it alone.
keep-unnamed: leave alone an instance whose tags name no node, and that can have no record.
orphan-departed: the same of one that runs on without its node: one of the records was set back.
adopt-orphan, terminate-orphan: an operator's command makes it a node of its pool, or removes it.
forget-instance: a provider no longer lists an orphan, or the instance of a node that is gone.
adopt-joined, retire-joined: others have made the instance, or removed it."""
LEFT: Final = "others have removed it"
"""Error in the record of an instance that this fleet has not terminated."""
DEPARTED: Final = "it runs on, and its node has left its pool: a record was set back"
REMOVALS: Final = frozenset({"remove-unexpected", "remove-surplus"})
COMMANDED: Final = REMOVALS | {"note-unclear", "keep-unnamed"}
"""What an operator's command may name, beside orphans."""


@dataclass(frozen=True, slots=True)
class SweepAction:
    """An action says what a sweep does about one difference, and why."""

    kind: SweepKind
    key: str
    provider: str
    instance: Instance
    """As listed; else as recorded."""
    why: str
    waits_seconds: float = 0.0
    """The rest of the grace: a replica may be about to finish its work."""
    beside: str = ""
    """ID of the machine of its name that serves, empty: it is not known; of `correct-id`, ID of the
    other machine of its name, which its record names."""
    by_operator: bool = False
    """An operator's command names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepInput:
    """The sweep decides on these values.

    The providers were listed *before* the records were read: as an intention is recorded before its
    provider is called, an instance without a record does not belong to a launch in progress.
    """

    fleet: str
    fleet_name: str = ""
    """As configured: it begins the ID of this fleet and of those whose store was lost."""
    records_since: datetime | None = None
    """When INSTANCES was created again after its loss; None: it is as old as the fleet."""
    serials: Mapping[str, int] = field(default_factory=dict)
    """Pool -> the highest number that POOLS has given to a node of it."""
    adopt: frozenset[str] = frozenset()
    """Orphans that an operator adopts, by instance name or provider ID."""
    terminate: frozenset[str] = frozenset()
    records: Mapping[str, InstanceRecord]
    listed: Mapping[str, Sequence[Instance]]
    """By provider; one that could not be listed is missing, and proves nothing."""
    can: Mapping[str, Capabilities] = field(default_factory=dict)
    """By provider."""
    first_seen: Mapping[tuple[str, str], datetime]
    """(provider, provider ID) -> when this sweeper first saw it; its age counts from there."""
    living: frozenset[str]
    """Keys of nodes that NODES knows as not terminated."""
    departed: frozenset[str] = frozenset()
    """Keys of nodes that NODES knows as terminated, or that nothing launches any more."""
    canonical: Mapping[str, str] = field(default_factory=dict)
    """Key of a record -> its ID in the form in which its provider lists it, where that differs."""
    machines: Mapping[str, MachineIdentity] = field(default_factory=dict)
    """Key of a node of which several machines are listed -> which it is, by its agent."""
    unrecorded: Mapping[str, NodeRecord] = field(default_factory=dict)
    """Nodes in service that others have made, and of whose instance there is no record."""
    admitted: Mapping[str, datetime] = field(default_factory=dict)
    """Pool -> when it last admitted a node; only of pools with instances that are kept."""
    now: datetime
    grace: timedelta
