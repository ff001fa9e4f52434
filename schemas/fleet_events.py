"""Facts about the fleet's own services, on `navarch.v1.fleet.event.<fact>`: they have no pool."""

from typing import Literal

from schemas.enums import ProviderErrorKind
from schemas.messages import Codec, Message


class FleetEvent(Message, frozen=True, kw_only=True):
    """What every fact about the fleet's services carries."""


class ConsumerLag(FleetEvent, frozen=True, kw_only=True, tag="io.navarch.metrics.event.v1.lag"):
    """A service does not keep up with its messages, or does again."""

    status: Literal["lagging", "caught-up"]
    stream: str
    durable: str
    messages: int
    """How many wait that no replica has taken."""
    seconds: float
    """How long the oldest of them has waited."""
    reason: str = ""


class UnknownError(
    FleetEvent, frozen=True, kw_only=True, tag="io.navarch.provisioner.event.v1.unknown_error"
):
    """A provider answered with an error that Navarch has no row for; told once for each code."""

    provider: str
    code: str
    """As the provider spells it; the exception's name where a plugin let one out."""
    call: str
    """What it was asked: provision, terminate, list …"""
    message: str
    treated_as: ProviderErrorKind = "TRANSIENT"
    """The kind it is treated as until it has a row."""


FACTS: dict[type[FleetEvent], str] = {ConsumerLag: "lag", UnknownError: "unknown-error"}
"""The last token of each event's subject."""

fleet_codec = Codec(FACTS)
