"""Keeps secret values out of logs, errors and everything that is stored.

Code that handles a secret names the setting instead of its value. An answer or an exception of a
library may repeat the value all the same, so every value that a process reads is registered here
and replaced in log lines and in the texts of errors. The registry is the process's, as its log is.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, get_args, get_type_hints
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from schemas.secret_text import SECRET

REDACTED: Final = "[secret]"
CHARS_MIN: Final = 10
"""Shorter values are words that occur elsewhere."""
VALUES_MAX: Final = 512
"""Registered at once; the oldest make room."""
TOKEN_CHARS_MIN: Final = 16
"""A part of a URL or header from this length on may be a token; shorter ones are names."""

_values: dict[str, None] = {}


def register_secret(value: str) -> str:
    """Have a value replaced wherever it is about to be shown; return it."""
    for part in _parts(value.strip()):
        _values.pop(part, None)
        _values[part] = None
    while len(_values) > VALUES_MAX:
        del _values[next(iter(_values))]
    return value


def register_secrets(read: object) -> None:
    """Register every SecretText of settings or options that were read."""
    if not isinstance(read, msgspec.Struct):
        return
    for name, hint in _hints(type(read)).items():
        value = getattr(read, name)
        if isinstance(value, msgspec.Struct):
            register_secrets(value)
        elif is_secret(hint):
            for each in _texts(value):
                register_secret(each)
        elif isinstance(value, dict | tuple):
            for each in value.values() if isinstance(value, dict) else value:
                register_secrets(each)


def redacted(text: str) -> str:
    """The text without the registered values, the longest first."""
    found = [value for value in _values if value in text]
    for value in sorted(found, key=len, reverse=True):
        text = text.replace(value, REDACTED)
    return text


def public_url(url: str) -> str:
    """A URL's scheme, host and port: the other parts may hold credentials."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return REDACTED
    return f"{parts.scheme}://{parts.hostname or ''}{port}" if parts.scheme else REDACTED


def is_secret(hint: Any) -> bool:
    """Return whether a field's type, or that of its elements, is SecretText."""
    return SECRET in getattr(hint, "__metadata__", ()) or any(map(is_secret, get_args(hint)))


@lru_cache(maxsize=256)
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def _parts(value: str) -> set[str]:
    """The value, what in it is a secret by itself, and how other formats write it."""
    found, tokens = {value}, set(value.split())
    if "://" in value:
        try:
            url = urlsplit(value)
        except ValueError:
            url = urlsplit("")
        found.add(url.password or "")
        tokens |= {url.username or "", url.query, url.fragment, *url.path.split("/")}
        tokens |= {each for _, each in parse_qsl(url.query)}
    found |= {each for each in tokens if len(each) >= TOKEN_CHARS_MIN}
    found |= {unquote(each) for each in found} | {quote(each, safe="") for each in found}
    found |= {json.dumps(each)[1:-1] for each in found}
    return {each for each in found if len(each) >= CHARS_MIN}
