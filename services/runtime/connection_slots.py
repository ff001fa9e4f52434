"""The slots decide which connection of a server ends, so that strangers block no caller. Pure."""

from collections import Counter
from collections.abc import Hashable
from ipaddress import IPv6Network
from typing import Final, Generic, TypeVar

C = TypeVar("C", bound=Hashable)
STRANGERS_MAX: Final = 4_096
"""How many connections may be open on which no caller was authenticated."""
STRANGERS_OF_ADDRESS_MAX: Final = 1_024
"""How many of them may be of one address."""
KNOWN_MAX: Final = 4_096
"""How many connections of authenticated callers may be open; no stranger takes their slots."""
CALLER_SHARE: Final = 4
"""One in so many of them may be of one caller."""
OTHER_FILES: Final = 1_024
"""How many files a process has open for all else; at most half of those that it may open."""
FILES_WANTED: Final = STRANGERS_MAX + KNOWN_MAX + OTHER_FILES
"""How many files a process with all slots may have open."""
SITE_BITS: Final = 64
"""One machine has all IPv6 addresses that share so many first bits."""


class ConnectionSlots(Generic[C]):
    """The slots hold what is open: of strangers the newest connections, and of known callers all.

    Every connection is let in, a probe's too; a stranger's oldest one goes where there are too
    many. An honest caller is answered, or is known, before so many others have come after it.
    """

    def __init__(
        self,
        strangers_max: int = STRANGERS_MAX,
        of_address_max: int = STRANGERS_OF_ADDRESS_MAX,
        known_max: int = KNOWN_MAX,
    ) -> None:
        self._strangers_max = strangers_max
        self._of_address_max = of_address_max
        self._known_max = known_max
        self._strangers: dict[C, str] = {}
        self._at: dict[str, dict[C, None]] = {}
        self._known: dict[C, str] = {}
        self._of_caller: Counter[str] = Counter()

    @classmethod
    def within(cls, files: int) -> "ConnectionSlots[C]":
        """Return as many slots as a process has files for that may open so many."""
        each = max(files - min(OTHER_FILES, files // 2), 2) // 2
        share = min(each, STRANGERS_MAX)
        return cls(share, max(share * STRANGERS_OF_ADDRESS_MAX // STRANGERS_MAX, 1), share)

    def add(self, connection: C, address: str) -> C | None:
        """Take a new connection; return the one that must end for it, if there is one."""
        place = site(address)
        at = self._at.setdefault(place, {})
        at[connection] = None
        self._strangers[connection] = place
        if len(at) > self._of_address_max:
            oldest = next(iter(at))
        elif len(self._strangers) > self._strangers_max:
            oldest = next(iter(self._strangers))
        else:
            return None
        self.remove(oldest)
        return oldest

    def know(self, connection: C, caller: str) -> bool:
        """Count a connection to those of authenticated callers; False: there is no room."""
        has_room = len(self._known) < self._known_max
        has_share = self._of_caller[caller] < max(self._known_max // CALLER_SHARE, 1)
        if connection in self._strangers and has_room and has_share:
            self.remove(connection)
            self._known[connection] = caller
            self._of_caller[caller] += 1
        return connection in self._known

    def is_stranger(self, connection: C) -> bool:
        """Return whether a connection is open on which no caller was authenticated."""
        return connection in self._strangers

    def remove(self, connection: C) -> None:
        """Forget a connection that has ended, or has to."""
        if (caller := self._known.pop(connection, None)) is not None:
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]
        place = self._strangers.pop(connection, None)
        if place is not None:
            del self._at[place][connection]
            if not self._at[place]:
                del self._at[place]


def site(address: str) -> str:
    """Return what is one for all addresses of one machine. Pure."""
    if ":" not in address:
        return address
    return str(IPv6Network((address.partition("%")[0], SITE_BITS), strict=False))
