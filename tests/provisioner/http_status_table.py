"""Each bare HTTP status means the same to every provider that is asked over HTTP."""

from typing import Final

Statuses = tuple[tuple[int, str, bool], ...]
"""Status, kind, and whether the error says that it is not known here."""

COMMON: Final[Statuses] = (
    (401, "AUTH", False),
    (403, "AUTH", False),
    (404, "INVALID", False),
    (429, "THROTTLE", False),
    (500, "TRANSIENT", False),
    (503, "TRANSIENT", False),
    (418, "TRANSIENT", True),
)
