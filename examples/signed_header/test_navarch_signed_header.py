"""Runs Navarch's suite for authenticators with headers that a proxy has signed."""

import base64
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from navarch.services.gateway.authenticators.authenticator import (
    Presented,
    RefusedCredentialsError,
    UnreachableError,
)
from navarch.services.gateway.conformance import AuthenticatorConformance
from navarch.services.primitives.clock import SystemClock
from navarch_signed_header import SignedHeader, sign

KEY, NEXT_KEY, FOREIGN_KEY = b"k" * 32, b"n" * 32, b"f" * 32
HOUR = 3_600
GRANTS = [{"match": role, "role": role} for role in ("viewer", "operator", "admin")]


def header(group: str, seconds: float = 600, key: bytes = KEY) -> str:
    """Return what the proxy sends about a caller of a group."""
    caller = {"name": "ada", "groups": ["staff", group], "until": int(time.time() + seconds)}
    text = base64.urlsafe_b64encode(json.dumps(caller).encode()).decode()
    return f"{text}.{sign(text, key).decode()}"


def presented(value: str) -> Presented:
    """Return a request with a signed header."""
    return Presented("GET", "/", {"x-signed-caller": value}, "192.0.2.7")


class Site:
    """Has what `navarch.services.gateway.conformance.AuthenticatorSite` lists."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys"
        self.file.write_bytes(KEY)

    def make(self) -> SignedHeader:
        """Make an authenticator, as a gateway does."""
        given = {"key_file": str(self.file), "grants": GRANTS}
        options = msgspec.convert(given, SignedHeader.Options)
        return SignedHeader(options=options, clock=SystemClock())

    def valid(self, role: str) -> Presented:
        """Return a request of a caller of this role."""
        return presented(header(role))

    def refused(self) -> Mapping[str, Presented]:
        """Return requests that are not accepted, each by its reason."""
        text, _, signature = header("admin").partition(".")
        mine = base64.urlsafe_b64encode(
            b'{"name": "eve", "groups": ["admin"], "until": 9999999999}'
        )
        return {
            "ended": presented(header("admin", seconds=-1)),
            "valid for a day": presented(header("admin", seconds=24 * HOUR)),
            "of another key": presented(header("admin", key=FOREIGN_KEY)),
            "without a signature": presented(text),
            "another caller under the same signature": presented(f"{mine.decode()}.{signature}"),
            "not text": presented(f"{text}.\u00e9\udcff"),
            "no payload": presented(f".{sign('', KEY).decode()}"),
            "long": presented("x" * 20_000),
            "without a grant": presented(header("guests")),
        }


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a gateway's side with one key."""
    return Site(tmp_path)


class TestSignedHeader(AuthenticatorConformance):
    """Presents credentials that are valid, that are not, and none."""

    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        """Return the credentials."""
        return Site(tmp_path)


async def test_no_character_of_a_header_can_be_changed(site: Site) -> None:
    """Each changed character of payload and signature is refused, and a cut header is."""
    found, value = site.make(), header("viewer")
    changed = [
        value[:place] + ("A" if value[place] != "A" else "B") + value[place + 1 :]
        for place in range(len(value))
    ]
    for each in (*changed, value[:-1]):
        with pytest.raises(RefusedCredentialsError):
            await found.authenticate(presented(each))


async def test_a_caller_is_known_for_as_long_as_the_header_says(site: Site) -> None:
    """The gateway ends a stream of events when the header ends."""
    principal = await site.make().authenticate(presented(header("viewer", seconds=600)))
    assert principal is not None
    assert principal.expires is not None
    assert abs(principal.expires.timestamp() - time.time() - 600) < 60


async def test_keys_are_exchanged_without_a_restart(site: Site) -> None:
    """Both keys are valid while the file has both, and a removed one is not."""
    found = site.make()
    old, new = presented(header("viewer")), presented(header("viewer", key=NEXT_KEY))
    for number, (keys, valid, refused) in enumerate(
        [((KEY,), (old,), (new,)), ((KEY, NEXT_KEY), (old, new), ()), ((NEXT_KEY,), (new,), (old,))]
    ):
        site.file.write_bytes(b"\n".join(keys))
        os.utime(site.file, (number, number))
        for each in valid:
            assert await found.authenticate(each) is not None
        for each in refused:
            with pytest.raises(RefusedCredentialsError):
                await found.authenticate(each)


@pytest.mark.parametrize("keys", [b"", b"short", KEY + b"\nshort"])
async def test_short_keys_let_no_caller_in(site: Site, keys: bytes) -> None:
    """A key that can be guessed is as good as none; the gateway answers 503."""
    site.file.write_bytes(keys)
    with pytest.raises(UnreachableError, match="fewer than 32 characters"):
        await site.make().authenticate(presented(header("viewer")))
    site.file.unlink()
    with pytest.raises(UnreachableError, match="cannot be read"):
        await site.make().authenticate(presented(header("viewer")))
