"""Facts about the fleet's own services, on `navarch.v1.fleet.event.<fact>`: they have no pool."""

from typing import Literal

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


FACTS: dict[type[FleetEvent], str] = {ConsumerLag: "lag"}
"""The last token of each event's subject."""

fleet_codec = Codec(FACTS)
