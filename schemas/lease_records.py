"""Leases, rate limits, batched launches and suspected messages, which replicas share: LEASES."""

import msgspec

from schemas.messages import Record
from schemas.value_limits import Identifier, Int, Token, UtcTime


class LeaseRecord(Record, frozen=True, kw_only=True):
    """LEASES `<name>`: the replica that holds a lease."""

    holder: str
    since: UtcTime


class OpeningsRecord(Record, frozen=True, kw_only=True):
    """LEASES `pool-manager.openings.<pool>`: the highest `openings` of a pool whose sagas began.

    A pool's record with fewer was rolled back.
    """

    openings: Int = 0


class RemovalGrantsRecord(Record, frozen=True, kw_only=True):
    """LEASES `pool-manager.removals.<pool>`: machines whose removal was granted lately.

    Replicas share it, so that the limit of a pool holds for all of them and over restarts.
    """

    granted: dict[str, UtcTime] = {}
    """Provider and ID -> when."""


class RateLimitRecord(Record, frozen=True, kw_only=True):
    """LEASES `provisioner.pace-<name>`: the next slot of a rate limit that replicas share.

    The slot begins when this was stored, or at `not_before`, whichever is later.
    """

    not_before: UtcTime | None = None
    full_at: UtcTime | None = None
    """When the bucket would be full again without this slot; None: it is full."""
    kind: str = ""
    """Kind of call with a lower rate of its own: `launch`."""
    slower: dict[str, UtcTime] = {}
    """Kind -> earliest time of its next slot; recomputed for this slot's own kind."""
    throttled: bool = False
    """It is no slot: the provider refused a request by its rate, so the bucket was empty then."""


class LaunchClaimRecord(Record, frozen=True, kw_only=True):
    """LEASES `provisioner.claim-<provider>-<launch>`: in which request an instance is launched.

    Of clouds where one request launches several. Written before the request is made.
    """

    request: Identifier
    """Its token; the launch's own: a request for this instance alone. Empty: none at present."""


class BatchedLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Records one launch of a request for several."""

    launch: Identifier
    """Of its claim."""
    node: Token
    token: Identifier


class LaunchBatchRecord(Record, frozen=True, kw_only=True):
    """LEASES `provisioner.batch-<provider>-<request>`: what one request launches.

    Written once, after the claims of its launches and before the request is made, so that a
    replica that repeats one of them repeats the request exactly.
    """

    launches: tuple[BatchedLaunch, ...] = ()
    """In the order of the cloud's launch index. Empty: it was refused, or is not to be made."""


class SuspectRecord(Record, frozen=True, kw_only=True):
    """LEASES `<service>.suspect.<durable>.<sequence>`: a redelivered message that is handled.

    Removed when it is answered; what stays names processes that died while they handled it.
    """

    stored: UtcTime
    """When the message was stored: its sequence may be used again after a loss."""
    processes: tuple[str, ...]


class SetAsideRecord(Record, frozen=True, kw_only=True):
    """LEASES `<service>.set-aside.<durable>.<sequence>`: a message that ended every process.

    Removed when the message is replayed and handled, or by an operator.
    """

    about: str
    digest: str
    """SHA-256 of subject and data, by which a replay is recognised."""
    reason: str
    remedy: str
