"""Header names: the server's (reserved prefix `Nats-`) and Navarch's.

NATS headers are case-sensitive (ADR-4), so each is declared once, here.
"""

from typing import Final

MSG_ID: Final = "Nats-Msg-Id"
"""Drops a repeated publish within the stream's duplicate window. One namespace per stream."""

EXPECTED_LAST_SUBJECT_SEQ: Final = "Nats-Expected-Last-Subject-Sequence"
"""Compare-and-set: the store is refused (10071) unless this is the subject's last sequence."""

EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
"""Extends the comparison to a wildcard, so that one sequence guards a whole subject tree."""

STREAM_SOURCE: Final = "Nats-Stream-Source"
"""Set by the server on a message that it copied from another stream: that stream, and its sequence
there. The server refuses a message that a client gives this header."""

TTL: Final = "Nats-TTL"
"""Per-message time to live, whole seconds with unit: `30s` (ADR-43)."""

MARKER_REASON: Final = "Nats-Marker-Reason"
"""Set by the server on the marker of a key whose TTL expired: `MaxAge`."""

KV_OPERATION: Final = "KV-Operation"
"""`DEL` or `PURGE` on a key-value entry that removes a key."""

SCHEDULE: Final = "Nats-Schedule"
"""When a scheduled message fires: `@at 2026-11-21T01:35:42.520Z` (ADR-51)."""

SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
"""The subject, in the same stream, that a scheduled message fires into."""

SERVICE_ERROR: Final = "Nats-Service-Error"
"""On a service's error reply: one sentence; the body is a QueryError (ADR-32)."""

TRACEPARENT: Final = "traceparent"
"""W3C trace context: one replacement is one trace."""

SUBJECT: Final = "Navarch-Subject"
"""The subject a request came on. Set by the receiver; a sender's value is ignored."""
