"""CloudEvents 1.0 as JSON and as headers, and the signature of what is sent. Pure.

The specification, its JSON format and its HTTP and NATS bindings need no more than this; the SDK on
PyPI calls itself a work in progress and has two more dependencies. The tests read with it.
"""

import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote

import msgspec

from schemas.time_text import utc_text

SECRET_CHARS_MIN: Final = 16
SPECVERSION: Final = "1.0"
STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
JSON: Final = "application/json"
_SAFE: Final = "".join(chr(each) for each in range(0x21, 0x7F) if chr(each) not in '"%')
"""What an attribute's value may have in a header as it is; the rest is percent-encoded."""


def check_secret(secret: str) -> None:
    """Raise ValueError for one that can be guessed; an empty one is none."""
    if secret and len(secret) < SECRET_CHARS_MIN:
        raise ValueError(
            f"`secret` is shorter than {SECRET_CHARS_MIN} characters; make one with "
            "`openssl rand -hex 32`"
        )


def signature_headers(secret: str, now: datetime, content: bytes) -> dict[str, str]:
    """Return the headers that sign the content; none without a secret.

    One mechanism for alerts and workload systems; docs/webhook.md shows how a receiver verifies it.
    """
    if not secret:
        return {}
    timestamp = str(int(now.timestamp()))
    return {
        "X-Navarch-Timestamp": timestamp,
        "X-Navarch-Signature": sign(secret, timestamp, content),
    }


def sign(secret: str, timestamp: str, content: bytes) -> str:
    """Return the HMAC-SHA256 of the timestamp, a dot, and the content."""
    signed = f"{timestamp}.".encode() + content
    return f"sha256={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds one event as CloudEvents describe it.

    `data` is JSON; every other field is an attribute, extensions included.
    """

    specversion: str
    id: str
    """With `source` the same whenever the same event is sent again."""
    source: str
    type: str
    subject: str = ""
    time: str
    """RFC 3339, in UTC."""
    datacontenttype: str
    sequence: str = ""
    """Extension: sorts the events of one source in the order in which they were stored."""
    severity: str = ""
    """Extension: of the alert that the event begins."""
    traceparent: str = ""
    """Extension: the trace that the event belongs to."""
    data: msgspec.Raw


def cloud_event(
    *, id_: str, source: str, kind: str, subject: str, time: datetime, data: bytes, **more: str
) -> CloudEvent:
    """Return an event about `subject`; `more`: its extensions."""
    return CloudEvent(
        specversion=SPECVERSION,
        id=id_,
        source=source,
        type=kind,
        subject=subject,
        time=utc_text(time),
        datacontenttype=JSON,
        data=msgspec.Raw(data),
        **more,
    )


def structured(event: CloudEvent) -> bytes:
    """Return the event as one JSON object."""
    return msgspec.json.encode(event)


def batch(events: Sequence[CloudEvent]) -> bytes:
    """Return events as one JSON array."""
    return msgspec.json.encode(events)


def binary_headers(event: CloudEvent) -> dict[str, str]:
    """Return the event's attributes as headers beside its data."""
    attributes = {
        name: value
        for name in CloudEvent.__struct_fields__
        if name not in ("data", "datacontenttype") and (value := getattr(event, name))
    }
    named = {f"ce-{name}": quote(value, safe=_SAFE) for name, value in attributes.items()}
    return {"Content-Type": event.datacontenttype, **named}
