"""Events about the fleet's own services, on `navarch.v1.fleet.event.<event>`."""

from typing import Literal

from schemas.enums import ProviderErrorKind
from schemas.messages import Codec, Message


class FleetEvent(Message, frozen=True, kw_only=True):
    """Fields of every event about the fleet's services."""


class ConsumerLag(FleetEvent, frozen=True, kw_only=True, tag="io.navarch.metrics.event.v1.lag"):
    """A service lags behind its messages, or has caught up."""

    status: Literal["lagging", "caught-up"]
    stream: str
    durable: str
    messages: int
    """Messages that no replica has received."""
    seconds: float
    """Age of the oldest of them."""
    reason: str = ""


class UnknownError(
    FleetEvent, frozen=True, kw_only=True, tag="io.navarch.provisioner.event.v1.unknown_error"
):
    """A provider returned an error that no rule covers; published once per code."""

    provider: str
    code: str
    """The provider's code, or the name of an exception that a plugin raised."""
    call: str
    """The provider call: provision, terminate, list …"""
    message: str
    treated_as: ProviderErrorKind = "TRANSIENT"
    """The kind it is treated as until a rule covers it."""


FACTS: dict[type[FleetEvent], str] = {ConsumerLag: "lag", UnknownError: "unknown-error"}
"""Event class -> last token of its subject."""

fleet_codec = Codec(FACTS)
