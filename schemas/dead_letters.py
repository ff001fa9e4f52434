"""Messages that could not be processed, and why: stream DEAD."""

from schemas.messages import Codec, Message


class DeadLetter(Message, frozen=True, kw_only=True, tag="io.navarch.runtime.event.v1.dead_letter"):
    """A message that could not be processed, on `navarch.v1.dead.<stream>.<durable>`."""

    stream: str
    durable: str
    subject: str
    sequence: int
    reason: str
    deliveries: int = 1
    data: str = ""
    """The message as text, cut to 64 KiB."""
    bytes: int = 0
    """Length of the whole message."""


dead_codec = Codec((DeadLetter,))
