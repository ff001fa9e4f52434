"""Header names: the server's own (reserved prefix `Nats-`) and ours.

NATS keeps the case of headers (ADR-4), so each is written here once and nowhere else.
"""

from typing import Final

MSG_ID: Final = "Nats-Msg-Id"
"""Drops a repeated publish within the stream's duplicate window. One namespace per *stream*."""

EXPECTED_LAST_SUBJECT_SEQ: Final = "Nats-Expected-Last-Subject-Sequence"
"""The guard: the store is refused (10071) unless this is the subject's last sequence."""

EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
"""Widens the guard to a wildcard, so that one number guards a whole subject tree."""

TTL: Final = "Nats-TTL"
"""Per-message time to live, whole seconds with unit: `30s` (ADR-43)."""

MARKER_REASON: Final = "Nats-Marker-Reason"
"""Set by the server on the marker it leaves when a key's TTL ran out: `MaxAge`."""

KV_OPERATION: Final = "KV-Operation"
"""`DEL` or `PURGE` on a key-value entry that removes a key."""

SCHEDULE: Final = "Nats-Schedule"
"""When a scheduled message fires: `@at 2026-11-21T01:35:42.520Z` (ADR-51)."""

SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
"""The subject, in the same stream, that a scheduled message fires into."""

SERVICE_ERROR: Final = "Nats-Service-Error"
"""On a service's answer that is an error: one sentence; the body is a QueryError (ADR-32)."""

TRACEPARENT: Final = "traceparent"
"""W3C trace context: the whole of one replacement is one trace."""

SUBJECT: Final = "Navarch-Subject"
"""On what an endpoint is asked: the subject it came on. Set by whoever receives, never believed."""
