"""Signs what is sent to a URL of the owner: HMAC-SHA256 over a timestamp and the content. Pure.

One mechanism for alerts and workload systems; docs/webhook.md shows how a receiver verifies it.
"""

import hashlib
import hmac
from datetime import datetime
from typing import Final

SECRET_CHARS_MIN: Final = 16


def check_secret(secret: str) -> None:
    """Raise ValueError for one that can be guessed; an empty one is none."""
    if secret and len(secret) < SECRET_CHARS_MIN:
        raise ValueError(
            f"`secret` is shorter than {SECRET_CHARS_MIN} characters; make one with "
            "`openssl rand -hex 32`"
        )


def signature_headers(secret: str, now: datetime, content: bytes) -> dict[str, str]:
    """The headers; none without a secret."""
    if not secret:
        return {}
    timestamp = str(int(now.timestamp()))
    return {
        "X-Navarch-Timestamp": timestamp,
        "X-Navarch-Signature": sign(secret, timestamp, content),
    }


def sign(secret: str, timestamp: str, content: bytes) -> str:
    """HMAC-SHA256 of the timestamp, a dot, and the content."""
    signed = f"{timestamp}.".encode() + content
    return f"sha256={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"
