"""The authenticator signed-header of Navarch: a proxy names the caller in a header that it signs.

    authenticators:
      proxy:
        type: signed-header
        key_file: /run/secrets/proxy-keys
        grants:
          - {match: gpu-admins, role: admin}

The header is a payload, a dot and a signature: base64url of `{"name": "ada", "groups": ["staff"],
"until": 1893456000}`, and the hexadecimal HMAC-SHA256 of that text. The address of the sender does
not count, so there may be many proxies; a stolen header is valid until it ends.
"""

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from navarch.schemas.settings import Setting
from navarch.services.gateway.access_tokens import Principal
from navarch.services.gateway.authenticators.authenticator import (
    NoRoleError,
    Presented,
    RefusedCredentialsError,
    UnreachableError,
)
from navarch.services.gateway.authenticators.grants import Grants, granted
from navarch.services.primitives.clock import Clock

HEADER_CHARS_MAX: Final = 8_192
KEY_BYTES_MIN: Final = 32


class Caller(msgspec.Struct, kw_only=True):
    """Holds what the proxy signs."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    groups: tuple[str, ...] = ()
    until: Annotated[int, msgspec.Meta(ge=0, le=2**33)]
    """In seconds since 1970."""


class SignedHeader:
    """Knows the callers whom a proxy has signed."""

    class Options(Setting, frozen=True, kw_only=True):
        """Holds what a configuration sets."""

        key_file: str
        """The proxy's keys, one a line: a second one is added before the proxy changes to it."""
        grants: Grants
        """Group -> role and pools."""
        header: str = "x-signed-caller"
        """The header's name, in lower case."""
        valid_seconds_max: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 3_600
        """A header that is valid for longer is refused: it could not be withdrawn."""

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Keep the options; the keys are read by the first question."""
        self._options = options
        self._clock = clock
        self._keys: tuple[bytes, ...] = ()
        self._read_at_change = -1

    async def authenticate(self, presented: Presented) -> Principal | None:
        """Return the caller; None where the request has no credentials of this kind."""
        header = presented.headers.get(self._options.header, "")
        if not header:
            return None
        caller = self._signed(header)
        until, now = datetime.fromtimestamp(caller.until, UTC), self._clock.now()
        if until <= now:
            raise RefusedCredentialsError(f"the signed header was valid until {until:%H:%M:%S} UTC")
        if (until - now).total_seconds() > self._options.valid_seconds_max:
            raise RefusedCredentialsError("the signed header is valid for too long")
        if not caller.name.isprintable():
            raise RefusedCredentialsError("the caller's name cannot be shown")
        grant = granted(self._options.grants, caller.groups)
        if grant is None:
            raise NoRoleError(f"no grant matches the groups of {caller.name}")
        return Principal(name=caller.name, role=grant.role, pools=grant.pools, expires=until)

    async def close(self) -> None:
        """Close nothing: no connection is kept."""

    def _signed(self, header: str) -> Caller:
        """Return what the proxy signed: nothing of the payload is read before that is known."""
        text, _, signature = header.partition(".")
        given = signature.encode(errors="replace")
        valid = [hmac.compare_digest(given, sign(text, key)) for key in self._current_keys()]
        if len(header) > HEADER_CHARS_MAX or not any(valid):
            raise RefusedCredentialsError("the header is not signed by the proxy")
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text), type=Caller)
        except (ValueError, msgspec.MsgspecError) as error:
            raise RefusedCredentialsError("the signed header names no caller") from error

    def _current_keys(self) -> tuple[bytes, ...]:
        """Return the keys; the file is read again after it has changed."""
        file = Path(self._options.key_file)
        try:
            changed = file.stat().st_mtime_ns
            if changed != self._read_at_change:
                self._keys = tuple(file.read_bytes().split())
                self._read_at_change = changed
        except OSError as error:
            raise UnreachableError(f"the proxy's keys cannot be read: {error.strerror}") from error
        if not self._keys or min(map(len, self._keys)) < KEY_BYTES_MIN:
            raise UnreachableError(f"the proxy's keys have fewer than {KEY_BYTES_MIN} characters")
        return self._keys


def sign(text: str, key: bytes) -> bytes:
    """Return the signature of a payload, as the proxy writes it."""
    return hmac.new(key, text.encode(errors="replace"), hashlib.sha256).hexdigest().encode()
