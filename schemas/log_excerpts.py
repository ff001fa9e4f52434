"""Requests for the newest log lines of an agent or a service, and the answers."""

from typing import Annotated, Final

import msgspec

from schemas.value_limits import UtcTime

LINES_MAX: Final = 1_000
"""Of one answer."""
LINE_CHARS_MAX: Final = 4_096
"""Of one line's text, escaped; the rest is cut off."""
AGENT_EXCERPT_BYTES_MAX: Final = 49_152
"""Of the lines in one answer of an agent: a message of an agent has at most 65,536."""
SERVICE_EXCERPT_BYTES_MAX: Final = 262_144
"""Of the lines in one answer of a service's replica: a message has at most 1,048,576."""
REPLICA_CHARS_MAX: Final = 128


class LogRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Request of the newest log lines that a process keeps in memory."""

    lines: Annotated[int, msgspec.Meta(ge=1, le=LINES_MAX)] = 100
    """At most so many."""
    since: UtcTime | None = None
    """Only lines from this time on."""
    kernel: bool = False
    """Only the kernel's lines about the driver; only agents have some."""
    replica: Annotated[str, msgspec.Meta(max_length=REPLICA_CHARS_MAX)] = ""
    """Only of the replica whose name begins so; others answer without lines. Empty: of any."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds one log line of a service or node."""

    time: UtcTime
    level: str
    text: str
    """On one line, escaped as in JSON."""
    origin: str = ""
    """`kernel`: the kernel wrote it; `user`: a process wrote it into the kernel log; else empty."""


class LogExcerpt(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the newest lines of a log, oldest first."""

    source: str
    """The replica, or the node, that answers."""
    lines: tuple[LogLine, ...]
    left_out: int = 0
    """Earlier lines that were asked for and did not fit into the answer."""
    kept_since: UtcTime | None = None
    """Earlier lines are no longer kept, or were never in this process."""
    refused: str = ""
    """Why there are no lines; empty: these are all."""
