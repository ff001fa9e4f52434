"""Messages that end every process of their service that handles them. Pure."""

import json
from dataclasses import dataclass, field

from services.bus.port import Stored

Place = tuple[str, str, int]
"""Durable, stream and sequence."""


@dataclass(slots=True)
class FatalMessages:
    """Holds the fatal messages of one simulation."""

    armed: dict[str, int] = field(default_factory=dict)
    """Service -> how many of the messages that it handles next are to be fatal."""
    known: set[Place] = field(default_factory=set)
    _data: set[str] = field(default_factory=set)
    """Of each; a restored store has another message at the same sequence."""
    _repaired: bool = False

    def end_process(self, service: str, durable: str, stream: str, stored: Stored) -> bool:
        """Return whether handling this message ends the process."""
        place = (durable, stream, stored.sequence)
        if place not in self.known and self.armed.get(service, 0) > 0:
            self.armed[service] -= 1
            self.known.add(place)
        if place not in self.known or self._repaired:
            return False
        self._data.add(_content(stored.data.decode()))
        return True

    def end(self) -> None:
        """The services are repaired: no message is fatal any more."""
        self.armed.clear()
        self._repaired = True

    def wrote(self, durable: str, stream: str, sequence: int, data: str) -> bool:
        """Return whether a dead letter is about a fatal message, or about its replay."""
        return (durable, stream, sequence) in self.known or _content(data) in self._data


def _content(data: str) -> str:
    """The same for each way of writing a message: its replay has other escapes."""
    try:
        return json.dumps(json.loads(data), sort_keys=True)
    except (ValueError, RecursionError):
        return data
