"""Declares events about the fleet's own services, on `navarch.v1.fleet.event.<event>`."""

from typing import Literal

from schemas.enums import ProviderErrorKind
from schemas.messages import GATEWAY, POOL_MANAGER, PROVISIONER, RUNTIME, Codec, Message, last_word
from schemas.value_limits import Int, Name, OptionalToken, Seconds, UtcTime


class FleetEvent(Message, frozen=True, kw_only=True):
    """Declares the fields of every event about the fleet's services."""


class ConsumerLag(FleetEvent, frozen=True, kw_only=True, tag="io.navarch.metrics.event.v1.lag"):
    """A service lags behind its messages, or has caught up."""

    status: Literal["lagging", "caught-up"]
    stream: str
    durable: str
    messages: Int
    """Messages that no replica has received."""
    seconds: Seconds
    """Age of the oldest of them."""
    reason: str = ""


class UnknownError(FleetEvent, frozen=True, kw_only=True, tag=PROVISIONER):
    """A provider returned an error that no rule covers; published once per code."""

    provider: str
    code: str
    """The provider's code, or the name of an exception that a plugin raised."""
    call: str
    """The provider call: provision, terminate, list …"""
    message: str
    treated_as: ProviderErrorKind = "TRANSIENT"
    """The kind it is treated as until a rule covers it."""


FailureKind = Literal[
    "record-unreadable",
    "decision-failed",
    "consumer-missing",
    "consumer-damaged",
    "store-unwritable",
    "store-lost",
    "message-flood",
    "node-disconnected",
    "expires-soon",
    "message-set-aside",
    "alert-undelivered",
    "plugin-failing",
    "sink-undelivered",
    "sink-refused",
    "configuration-refused",
    "workload-system-away",
    "instance-unclear",
    "node-outlived",
    "provider-ids-changed",
    "removal-held",
    "list-empty",
]


StoreCause = Literal["", "rate", "files", "space", "quorum", "unknown"]
"""Why a server refuses to store; empty: the failure is another one."""


class ServiceFailure(FleetEvent, frozen=True, kw_only=True, tag=RUNTIME):
    """A part of a service's work fails, while everything else goes on; or it works again."""

    status: Literal["failing", "recovered"]
    service: str
    failure: FailureKind
    about: str
    """What it concerns: a pool, a record, a stream, a consumer."""
    reason: str
    remedy: str
    """What an operator does, with the command."""
    store_cause: StoreCause = ""
    """Of `store-unwritable`: too much is sent, or files, space or other servers are lacking."""


class AutomationStopped(FleetEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """An operator has stopped what is automatic, in the fleet or a part of it; or it goes on again.

    Published again every four hours while a stop lasts that has no end.
    """

    status: Literal["stopped", "resumed"]
    scope: Name
    """`fleet`, `pool.<pool>` or `provider.<provider>`."""
    pool: OptionalToken = ""
    provider: Name = ""
    running: bool = False
    """Open sagas wait, too."""
    until: UtcTime | None = None
    since: UtcTime
    by: Name = ""
    """Empty: it ended by itself."""
    reason: str = ""


class HttpChange(FleetEvent, frozen=True, kw_only=True, tag=GATEWAY):
    """A caller of the HTTP API requested a change; and what came of it."""

    by: Name
    """The name of the caller's token."""
    role: str
    address: Name
    """The address that the request came from: the caller's, or its proxy's."""
    change: Name
    """`POST` and the path, which names the node, pool or saga."""
    outcome: Literal["accepted", "refused", "forbidden", "unanswered", "invalid", "failed"]
    """refused: by the fleet; forbidden: its role or its pools do not allow it."""
    reason: str = ""
    request: Name = ""
    """The request that it became; the pool's answer has its ID too. Empty: it became none."""


class OrderAnswered(FleetEvent, frozen=True, kw_only=True, tag=RUNTIME):
    """A service performed an order at once, such as a sweep or an acknowledgement, or refused."""

    by: Name
    """The user in the order's subject, which a secured server has checked."""
    order: Name
    """`sweep-now`, `readmit`, `hardware-add`, …"""
    service: str
    content: str = ""
    """The order as it came, shortened."""
    outcome: Literal["accepted", "refused"]
    reason: str = ""


FACTS: dict[type[FleetEvent], str] = {each: last_word(each) for each in FleetEvent.__subclasses__()}
"""Event class -> last token of its subject."""

fleet_codec = Codec(FACTS)
