"""The queries `node-work` and `job-nodes` say what runs on nodes."""

from typing import Annotated, Final

import msgspec

from schemas.value_limits import NAME_CHARS_MAX, Name, Token, UtcTime

NODE_WORK: Final = "node-work"
NODES_MAX: Final = 500
"""Nodes of one question."""
JOB_NODES: Final = "job-nodes"
POOLS_MAX: Final = 1_000
OWNERS_MAX: Final = 20
"""Owners named in one answer."""
WORK_NAMED_MAX: Final = 5
"""Jobs named of each owner."""
JobName = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class RemainingWork(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job, pod or actor of a node: a drain waits for it, or it failed."""

    id: Name
    owner: Name = ""
    started_at: UtcTime | None = None
    ends_at: UtcTime | None = None
    """When the workload system ends it, by its time limit."""
    checkpoint_at: UtcTime | None = None
    """When its next checkpoint is written, as it announces."""


class OwnedWork(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says what one owner runs on nodes: whose work an order would end."""

    owner: Name = ""
    """Empty: the workload system does not say whose it is."""
    work: tuple[Name, ...] = ()
    """The first WORK_NAMED_MAX jobs, pods or actors."""
    total: int = 0
    """How many there are, as far as they are listed."""


class NodeWorkQuery(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Asks which of these nodes have no work."""

    pool: Token
    nodes: Annotated[tuple[Token, ...], msgspec.Meta(max_length=NODES_MAX)]


class NodeWorkAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds what the pool's workload systems say of its nodes' work at this moment."""

    idle: tuple[Token, ...] = ()
    """Those on which all of them say that nothing runs."""
    absent: tuple[Token, ...] = ()
    """Others on which nothing runs or is placed: a system does not know them, or drained them."""
    busy: tuple[Token, ...] = ()
    """Others on which a system says that something runs."""
    unknown: str = ""
    """Why nothing is known of the others; empty: they have work, named as busy or not."""
    owners: tuple[OwnedWork, ...] = ()
    """Whose work runs on any of them: the first OWNERS_MAX, those with the most work first."""


class JobNodesQuery(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Asks on which nodes a job runs."""

    job: JobName
    """Its ID or name, as the workload system has it."""
    pools: Annotated[tuple[Token, ...], msgspec.Meta(max_length=POOLS_MAX)] = ()
    """Only these; empty: all."""


class JobNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job runs, as the workload systems say, now."""

    nodes: tuple[Token, ...] = ()
    unknown: tuple[str, ...] = ()
    """Of which pools or nodes nothing is known, and why; empty: these are all."""
