"""Messages that could not be processed, and why: stream DEAD."""

from schemas.messages import Codec, Message
from schemas.value_limits import Int


class DeadLetter(Message, frozen=True, kw_only=True, tag="io.navarch.runtime.event.v1.dead_letter"):
    """A message that could not be processed, on `navarch.v1.dead.<stream>.<durable>`."""

    stream: str
    durable: str
    subject: str
    sequence: Int
    reason: str
    deliveries: Int = 1
    data: str = ""
    """The message as text, cut to 64 KiB."""
    bytes: Int = 0
    """Length of the whole message."""
    messages: Int = 1
    """How many messages of one sender this letter is about; `data` is the last of them."""


dead_codec = Codec((DeadLetter,))
