"""The type of settings that hold a secret."""

from typing import Annotated, Final

import msgspec

SECRET: Final = msgspec.Meta(extra={"secret": True})

SecretText = Annotated[str, SECRET]
"""A password, token or key, or a URL or header that may contain one.

It is registered for redaction when it is read (`services.primitives.redaction`), and never stored,
logged or passed to another process.
"""
