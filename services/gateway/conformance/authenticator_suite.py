"""Tests the contract of an authenticator, rule by rule; docs/write-an-authenticator.md."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol, get_args

import pytest

from schemas.gateway_settings import GatewayRole
from services.gateway.access_tokens import Principal
from services.gateway.authenticators.authenticator import (
    Authenticator,
    NoRoleError,
    Presented,
    RefusedCredentialsError,
)

CALL_SECONDS_MAX: Final = 10.0
CALLERS: Final = 50
NAME_CHARS_MAX: Final = 200
ANONYMOUS: Final = Presented("GET", "/api/v1/nodes", {}, "192.0.2.7")
"""A request that says nothing of its sender, from an address that is nothing to anyone."""
GARBAGE: Final[tuple[str, ...]] = (
    *(
        "",
        " ",
        "Bearer",
        "Bearer ",
        "Basic Og==",
        "Basic !",
        "Bearer a.b.c",
        "Bearer ..",
        "Bearer null",
    ),
    "Bearer " + "x" * 20_000,
    "Bearer \x00\xff",
    "Bearer eyJhbGciOiJub25lIn0.e30.",
    "Negotiate YIIB",
)
"""What a caller may send as `Authorization` that is valid nowhere."""


class AuthenticatorSite(Protocol):
    """Credentials that the tests present."""

    def make(self) -> Authenticator:
        """Make an authenticator, as a gateway does."""

    def valid(self, role: GatewayRole) -> Presented:
        """A request with credentials that are valid now, of one caller of this role."""

    def refused(self) -> Mapping[str, Presented]:
        """Requests with credentials of this kind that are not valid: expired, forged."""


class AuthenticatorConformance:
    """Inherit, name the class `Test…`, and write the fixture `site`."""

    @pytest.fixture
    def site(self) -> AuthenticatorSite:
        """Return the site under test; a suite overrides this fixture."""
        raise NotImplementedError("write the fixture `site`")

    async def test_it_knows_a_caller_of_each_role(self, site: AuthenticatorSite) -> None:
        """Callers are known by a name that can be shown; credentials that end say when."""
        found = site.make()
        for role in get_args(GatewayRole):
            principal = await _asked(found, site.valid(role))
            assert isinstance(principal, Principal)
            assert principal.role == role
            assert 0 < len(principal.name) <= NAME_CHARS_MAX
            assert principal.name.isprintable()
            assert isinstance(principal.pools, tuple)
            if principal.expires is not None:
                assert principal.expires > datetime.now(UTC)
        await found.close()

    async def test_every_gateway_knows_the_same_caller(self, site: AuthenticatorSite) -> None:
        """The name is that of the caller, not of the connection or of the request."""
        one, two = site.make(), site.make()
        asked = site.valid("operator")
        again = replace(asked, method="POST", path="/api/v1/pools/training/scale")
        names = {
            principal.name
            for each in (one, two)
            for request in (asked, again)
            if (principal := await _asked(each, request)) is not None
        }
        assert len(names) == 1
        await asyncio.gather(one.close(), two.close())

    async def test_a_request_without_credentials_is_left_to_others(
        self, site: AuthenticatorSite
    ) -> None:
        """None, and no error: the caller may have credentials of another kind."""
        found = site.make()
        assert await _asked(found, ANONYMOUS) is None
        await found.close()

    async def test_credentials_that_are_not_valid_are_refused(
        self, site: AuthenticatorSite
    ) -> None:
        """Credentials that are not valid get an error that ends the search, without any secret."""
        found = site.make()
        assert site.refused(), "name some"
        for why, request in site.refused().items():
            error = await _refusal(found, request)
            assert error is not None, f"{why} is accepted, or left to others"
            secrets = [each for each in request.headers.values() if len(each) > CALLERS]
            assert not [each for each in secrets if each in str(error)], why
        await found.close()

    async def test_garbage_is_never_accepted(self, site: AuthenticatorSite) -> None:
        """Garbage is refused or left to others, and causes no error of another kind."""
        found = site.make()
        for header in GARBAGE:
            await _refusal(found, replace(ANONYMOUS, headers={"authorization": header}))
        await found.close()

    async def test_an_altered_token_makes_no_other_caller(self, site: AuthenticatorSite) -> None:
        """Neither another name nor another role, whichever character is changed."""
        found = site.make()
        asked = site.valid("viewer")
        own = await _asked(found, asked)
        for changed in _altered(asked.headers.get("authorization", "")):
            request = replace(asked, headers={**asked.headers, "authorization": changed})
            try:
                principal = await _asked(found, request)
            except (RefusedCredentialsError, NoRoleError):
                continue
            assert principal in (None, own), "the token with a character changed"
        await found.close()

    async def test_many_are_asked_about_at_once(self, site: AuthenticatorSite) -> None:
        """The gateway waits for none before it asks about the next."""
        found = site.make()
        requests = [site.valid("viewer"), *site.refused().values()] * CALLERS
        async with asyncio.timeout(CALL_SECONDS_MAX):
            await asyncio.gather(*(_refusal(found, each, may_pass=True) for each in requests))
        await found.close()

    async def test_it_can_be_closed_twice(self, site: AuthenticatorSite) -> None:
        """An authenticator can be closed twice, also where it was asked nothing."""
        found = site.make()
        await found.close()
        await found.close()


async def _asked(found: Authenticator, request: Presented) -> Principal | None:
    async with asyncio.timeout(CALL_SECONDS_MAX):
        return await found.authenticate(request)


async def _refusal(
    found: Authenticator, request: Presented, *, may_pass: bool = False
) -> Exception | None:
    """How a request is refused; None: it is left to others."""
    try:
        principal = await _asked(found, request)
    except (RefusedCredentialsError, NoRoleError) as error:
        return error
    assert may_pass or principal is None, "garbage or credentials that are not valid are accepted"
    return None


def _altered(value: str) -> Sequence[str]:
    """The value with its beginning, its middle and its end changed, and cut."""
    if not value:
        return ()
    places = sorted({0, len(value) // 3, len(value) // 2, len(value) - 1})
    swapped = [
        value[:place] + ("A" if value[place] != "A" else "B") + value[place + 1 :]
        for place in places
    ]
    return [*swapped, value[:-1], value + "x"]
