"""What becomes of a message that cannot be used."""

from schemas.messages import Codec, Message


class DeadLetter(Message, frozen=True, kw_only=True, tag="io.navarch.runtime.event.v1.dead_letter"):
    """A message that could not be used, on `navarch.v1.dead.<stream>.<durable>`."""

    stream: str
    durable: str
    subject: str
    sequence: int
    reason: str
    deliveries: int = 1
    data: str = ""
    """The message as text, cut to 64 KiB."""
    bytes: int = 0
    """Its whole length."""


dead_codec = Codec((DeadLetter,))
