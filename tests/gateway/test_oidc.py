"""Callers with tokens of an identity provider: who they are, and what is no token at all."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import jwt
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.gateway.access_tokens import Principal
from services.gateway.authenticators.authenticator import (
    NoRoleError,
    Presented,
    RefusedCredentialsError,
    UnreachableError,
)
from services.gateway.authenticators.oidc_authenticator import (
    AGAIN_SECONDS,
    ASK_SECONDS_MAX,
    CHARS_MAX,
    FRESH_SECONDS,
    KEPT_SECONDS,
    NOT_VALID,
    OidcAuthenticator,
    groups_of,
)
from services.primitives.clock import SystemClock
from tests.gateway.conftest import MakeGateway
from tests.gateway.oidc_issuer import (
    AUDIENCE,
    OidcIssuer,
    encoded,
    oidc_issuer,
    private_key,
    public_jwk,
)

GRANTS = (
    {"match": "gpu-admins", "role": "admin"},
    {"match": "team-*", "role": "operator", "pools": ["train*"]},
    {"match": "staff", "role": "viewer"},
)


class Ahead(SystemClock):
    """A clock that a test moves."""

    seconds = 0.0

    def monotonic(self) -> float:
        """Return the time, so much later."""
        return super().monotonic() + self.seconds


@pytest.fixture
async def issuer() -> AsyncIterator[OidcIssuer]:
    """Serve a provider with an RSA and an EC key."""
    async with oidc_issuer() as found:
        yield found


@pytest.fixture
async def clock() -> Ahead:
    """Return the authenticator's clock."""
    return Ahead()


def options(of: OidcIssuer, **changes: Any) -> OidcAuthenticator.Options:
    """Return the options of an authenticator of this issuer."""
    raw = {"issuer": of.url, "audience": AUDIENCE, "grants": GRANTS, **changes}
    return msgspec.convert(raw, OidcAuthenticator.Options)


@pytest.fixture
async def oidc(issuer: OidcIssuer, clock: Ahead) -> AsyncIterator[OidcAuthenticator]:
    """Yield the authenticator."""
    found = OidcAuthenticator(options=options(issuer), clock=clock)
    yield found
    await found.close()


def presented(token: str, scheme: str = "Bearer") -> Presented:
    """Return a request with a token."""
    return Presented("GET", "/api/v1/nodes", {"authorization": f"{scheme} {token}"}, "10.0.0.5")


@pytest.mark.parametrize("kind", ["RSA", "EC"])
async def test_a_token_names_its_caller(oidc: Any, issuer: OidcIssuer, kind: Any) -> None:
    """A caller has the role of the first grant that matches, until the token ends."""
    end = datetime(2100, 1, 1, tzinfo=UTC)
    for changes, role, pools in (
        ({}, "admin", ()),
        ({"groups": ["staff", "team-ml"]}, "operator", ("train*",)),
        ({"groups": "staff other"}, "viewer", ()),
        ({"aud": ["other", AUDIENCE]}, "admin", ()),
    ):
        token = issuer.token(kind, exp=int(end.timestamp()), **changes)
        assert await oidc.authenticate(presented(token)) == Principal(
            name="ada", role=role, pools=pools, expires=end
        )
    assert len(issuer.asked) == 2


def forged(issuer: OidcIssuer) -> dict[str, str]:
    """Tokens that are none, whatever they say."""
    good = issuer.token()
    head, body, signature = good.split(".")
    admin = encoded(issuer.claims(sub="root"))
    other = {"jwk": public_jwk("RSA", 2), "jku": "https://evil.example/keys", "kid": "RSA-2"}
    return {
        "none": issuer.unsigned(),
        "None": issuer.unsigned("None"),
        "none with a signature": f"{issuer.unsigned()}{signature}",
        "HS256 with the public key": issuer.signed_with_public_key("pem"),
        "HS256 with its DER": issuer.signed_with_public_key("der"),
        "HS256 with its JWK": issuer.signed_with_public_key("jwk"),
        "other claims": f"{head}.{admin}.{signature}",
        "no signature": f"{head}.{body}.",
        "half a signature": f"{head}.{body}.{signature[:-20]}",
        "another key": issuer.token("RSA", 2, {"kid": "RSA-1"}),
        "a key in its header": issuer.token("RSA", 2, other),
        "an unknown key": issuer.token("RSA", 2),
        "a key of another type": issuer.token("EC", 1, {"kid": "RSA-1"}),
        "an algorithm that is not configured": issuer.token(algorithm="RS512"),
        "a key's name that is none": issuer.token(headers={"kid": "../../etc/passwd\n"}),
        "an extension that must be understood": issuer.token(headers={"crit": ["x"], "x": 1}),
        "no key's name, of two keys": jwt.encode(issuer.claims(), private_key("RSA", 1), "RS256"),
    }


NAMES = tuple(forged(OidcIssuer(url="http://127.0.0.1:1")))


@pytest.mark.parametrize("name", NAMES)
async def test_what_the_provider_did_not_sign_is_refused(
    oidc: Any, issuer: OidcIssuer, name: str
) -> None:
    """The refusal does not say why, as nothing in such a token is proven."""
    said, found = NOT_VALID, None
    try:
        found = await oidc.authenticate(presented(forged(issuer)[name]))
    except RefusedCredentialsError as error:
        said = str(error)
    # What is no JWT at all is left to other authenticators.
    assert (said, found) == (NOT_VALID, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"aud": "other"}, "for another audience"),
        ({"aud": None}, "no claim aud"),
        ({"aud": ["other", "navarch-2"]}, "for another audience"),
        ({"exp": 1}, "has expired"),
        ({"exp": None}, "no claim exp"),
        ({"exp": "soon"}, "not valid"),
        ({"exp": 1e300}, "not valid"),
        ({"exp": float("inf")}, "not valid"),
        ({"exp": float("nan")}, "not valid"),
        ({"nbf": float("inf")}, "not valid"),
        ({"exp": True}, "has expired"),
        ({"nbf": 4_000_000_000}, "is not valid yet"),
        ({"iat": 4_000_000_000}, "is not valid yet"),
        ({"sub": None}, "no claim sub"),
        ({"sub": ""}, "is no name"),
        ({"sub": "ada\nroot"}, "is no name"),
        ({"sub": "ada via gateway"}, "is no name"),
        ({"sub": "a" * 201}, "is no name"),
        ({"sub": "аda"}, "is no name"),  # noqa: RUF001 - not in ASCII
    ],
)
async def test_a_token_that_is_not_valid_here_and_now_is_refused(
    oidc: Any, issuer: OidcIssuer, changes: dict[str, Any], said: str
) -> None:
    """The token's owner learns why: the provider's signature proves that the token is theirs."""
    with pytest.raises(RefusedCredentialsError, match=said):
        await oidc.authenticate(presented(issuer.token(**changes)))


@pytest.mark.parametrize("groups", [None, [], ["guests"], "GPU-ADMINS", {"gpu-admins": 1}, [7]])
async def test_a_caller_without_a_grant_has_no_role(
    oidc: Any, issuer: OidcIssuer, groups: Any
) -> None:
    """A caller without a grant is known, and refused as such."""
    with pytest.raises(NoRoleError, match="no grant matches the groups of ada"):
        await oidc.authenticate(presented(issuer.token(groups=groups)))


async def test_other_credentials_are_left_to_others(oidc: Any, issuer: OidcIssuer) -> None:
    """Tokens that are no JWT, and JWTs of another issuer; the provider is not asked."""
    others = ("", "navarch_abc", "a.b.c", "a.b", "..", issuer.token(iss="https://other.example"))
    for token in (*others, f"{issuer.token()}{'x' * CHARS_MAX}"):
        assert await oidc.authenticate(presented(token)) is None
    assert await oidc.authenticate(presented(issuer.token(), "Basic")) is None
    assert issuer.asked == []


async def test_keys_are_rotated(oidc: Any, issuer: OidcIssuer, clock: Ahead) -> None:
    """A new key is read when a token names it, and one that is withdrawn ends within minutes."""
    await oidc.authenticate(presented(issuer.token()))
    issuer.keys.append(public_jwk("RSA", 2))
    clock.seconds += AGAIN_SECONDS
    assert await oidc.authenticate(presented(issuer.token("RSA", 2)))
    assert await oidc.authenticate(presented(issuer.token("RSA", 1)))
    assert issuer.asked.count("/keys") == 2
    del issuer.keys[0]
    clock.seconds += FRESH_SECONDS + 1
    with pytest.raises(RefusedCredentialsError):
        await oidc.authenticate(presented(issuer.token("RSA", 1)))
    assert await oidc.authenticate(presented(issuer.token("RSA", 2)))


async def test_unknown_keys_do_not_flood_the_provider(
    oidc: Any, issuer: OidcIssuer, clock: Ahead
) -> None:
    """The provider is asked once in AGAIN_SECONDS, however many tokens name an unknown key."""
    tokens = [issuer.token("RSA", 2, {"kid": f"k{number}"}) for number in range(200)]

    async def refused(token: str) -> None:
        with pytest.raises(RefusedCredentialsError):
            await oidc.authenticate(presented(token))

    await asyncio.gather(*map(refused, tokens))
    for token in tokens:
        await refused(token)
    assert issuer.asked.count("/keys") == 1
    clock.seconds += AGAIN_SECONDS
    await asyncio.gather(*map(refused, tokens))
    assert issuer.asked.count("/keys") == 2
    assert await oidc.authenticate(presented(issuer.token()))


async def test_keys_outlive_the_providers_outage(
    oidc: Any, issuer: OidcIssuer, clock: Ahead
) -> None:
    """Keys are kept for a day; the provider is asked every AGAIN_SECONDS, and found again."""
    await oidc.authenticate(presented(issuer.token()))
    issuer.down = True
    clock.seconds += FRESH_SECONDS + 1
    for _ in range(20):
        assert await oidc.authenticate(presented(issuer.token()))
    assert len(issuer.asked) == 3
    clock.seconds += KEPT_SECONDS
    with pytest.raises(UnreachableError, match="503 Service Unavailable"):
        await oidc.authenticate(presented(issuer.token()))
    issuer.down = False
    clock.seconds += AGAIN_SECONDS
    assert await oidc.authenticate(presented(issuer.token()))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"down": True}, "503"),
        ({"raw": b"[" * 100_000}, "did not answer what was asked"),
        ({"raw": b'{"keys": 3}'}, "did not answer what was asked"),
        ({"raw": b" " * 300_000}, "longer than"),
        ({"discovery": {"issuer": "https://evil.example"}}, "of another issuer"),
        ({"discovery": {"jwks_uri": "http://evil.example/keys"}}, "is not https"),
        ({"discovery": {"jwks_uri": "file:///etc/passwd"}}, "is not https"),
    ],
)
async def test_a_provider_without_keys_is_no_reason_to_trust(
    oidc: Any, issuer: OidcIssuer, broken: dict[str, Any], said: str
) -> None:
    """No caller gets in, and the reason is the provider's."""
    for name, value in broken.items():
        setattr(issuer, name, value)
    with pytest.raises(UnreachableError, match=said):
        await oidc.authenticate(presented(issuer.token()))


async def test_unusable_keys_are_passed_over(oidc: Any, issuer: OidcIssuer) -> None:
    """Symmetric ones above all: what is in public is no secret."""
    secret = {"kty": "oct", "kid": "oct", "k": encoded(b"s" * 32), "alg": "HS256"}
    wrong = {"kty": "RSA", "kid": "RSA-9", "n": "AQAB", "e": "!"}
    issuer.keys[:0] = [secret, wrong, {"kty": "EC", "kid": "EC-9", "crv": "P-0"}]
    issuer.keys.append({**public_jwk("RSA", 3), "use": "enc"})
    assert await oidc.authenticate(presented(issuer.token()))
    claims = issuer.claims()
    for token in (
        jwt.encode(claims, b"s" * 32, "HS256", {"kid": "oct"}),
        issuer.token("RSA", 3),
        issuer.token("RSA", 2, {"kid": "RSA-9"}),
        issuer.token("EC", 2, {"kid": "EC-9"}),
    ):
        with pytest.raises(RefusedCredentialsError):
            await oidc.authenticate(presented(token))


async def test_a_hanging_provider_delays_for_seconds_alone(
    oidc: Any, issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that wait share the wait."""
    monkeypatch.setattr("services.gateway.authenticators.oidc_authenticator.ASK_SECONDS_MAX", 0.2)
    assert ASK_SECONDS_MAX <= 5
    issuer.hangs = True

    async def refused() -> None:
        with pytest.raises(UnreachableError):
            await oidc.authenticate(presented(issuer.token()))

    async with asyncio.timeout(10):
        await asyncio.gather(*(refused() for _ in range(50)))
    assert len(issuer.asked) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.lists(st.binary(max_size=40), min_size=3, max_size=3), st.booleans())
async def test_no_garbage_ends_otherwise_than_refused(parts: list[bytes], signed: bool) -> None:
    """A header or claims of any bytes, base64 or not, are refused."""
    issuer = OidcIssuer(url="http://127.0.0.1:1")
    oidc = OidcAuthenticator(options=options(issuer), clock=SystemClock())
    texts = [encoded(each) if signed else each.decode("latin-1") for each in parts]
    try:
        assert await oidc.authenticate(presented(".".join(texts))) is None
    except RefusedCredentialsError:
        pass
    finally:
        await oidc.close()


async def test_claims_can_be_named_otherwise(issuer: OidcIssuer, clock: Ahead) -> None:
    """Claims may be a verified email, and roles within another claim."""
    changes = {"name_claim": "email", "groups_claim": "realm_access.roles"}
    found = OidcAuthenticator(options=options(issuer, **changes), clock=clock)
    about = {"email": "ada@example.com", "realm_access": {"roles": ["gpu-admins"]}}
    token = issuer.token(email_verified=True, **about)
    principal = await found.authenticate(presented(token))
    assert principal is not None
    assert (principal.name, principal.role) == ("ada@example.com", "admin")
    for verified in (None, False, "true"):
        with pytest.raises(RefusedCredentialsError, match="not verified"):
            await found.authenticate(presented(issuer.token(email_verified=verified, **about)))
    await found.close()


@pytest.mark.parametrize(
    ("claims", "name", "groups"),
    [
        ({"a.b": ["x"], "a": {"b": ["y"]}}, "a.b", ["x"]),
        ({"a": {"b": ["y", 7, None]}}, "a.b", ["y"]),
        ({"a": "x y"}, "a", ["x", "y"]),
        ({"a": {"b": 1}}, "a.b.c", []),
        ({"a": 3}, "a", []),
        ({}, "a", []),
    ],
)
def test_groups_are_a_text_a_list_or_within(claims: Any, name: str, groups: list[str]) -> None:
    """A claim that is neither a text nor a list is no group."""
    assert list(groups_of(claims, name)) == groups


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"issuer": "http://login.example.com"}, "issuer is no https URL"),
        ({"issuer": "ftp://127.0.0.1"}, "issuer is no https URL"),
        ({"issuer": "https://"}, "issuer is no https URL"),
        ({"keys_url": "http://login.example.com/keys"}, "keys_url is no https URL"),
    ],
)
def test_keys_come_over_a_protected_connection(changes: dict[str, str], problem: str) -> None:
    """A program that could change them on the way would decide who is an administrator."""
    own = options(OidcIssuer(url="https://login.example.com"), **changes)
    with pytest.raises(ValueError, match=problem):
        OidcAuthenticator(options=own, clock=SystemClock())


@pytest.mark.parametrize("algorithms", [["HS256"], ["none"], ["RS256", "HS512"], []])
def test_only_signatures_with_public_keys_can_be_configured(algorithms: list[str]) -> None:
    """A key that the gateway could sign with itself is none of a provider."""
    with pytest.raises(msgspec.ValidationError):
        options(OidcIssuer(url="https://login.example.com"), algorithms=algorithms)


async def test_the_gateway_answers_callers_of_a_provider(
    oidc: Any, issuer: OidcIssuer, make_gateway: MakeGateway
) -> None:
    """Callers of a provider are served beside those with tokens.

    A refused, a forbidden and an unknown caller each have their status.
    """
    gateway = make_gateway(others={"company": oidc})

    async def get(token: str) -> httpx.Response:
        return await gateway.client(token).get("/api/v1/caller")

    answer = (await get(issuer.token(groups=["team-ml"]))).json()
    assert (answer["name"], answer["role"], answer["pools"]) == (
        "company:ada",
        "operator",
        ["train*"],
    )
    assert (await get("viewer-token")).json()["name"] == "ada"
    statuses = {
        issuer.token(exp=1): (401, "the token has expired: sign in again"),
        issuer.unsigned(): (401, "the token is not valid"),
        issuer.token(iss="https://other.example"): (401, "the token is not valid"),
        issuer.token(groups=[]): (403, "no grant matches the groups of ada"),
    }
    for token, (status, detail) in statuses.items():
        answer = await get(token)
        assert (status, detail) == (answer.status_code, answer.json()["detail"])


async def test_a_provider_that_is_away_is_503(
    oidc: Any, issuer: OidcIssuer, make_gateway: MakeGateway
) -> None:
    """Callers of a missing provider come again; those with tokens are not affected."""
    issuer.down = True
    gateway = make_gateway(others={"company": oidc})
    answer = await gateway.client(issuer.token()).get("/api/v1/caller")
    assert (503, "2") == (answer.status_code, answer.headers["Retry-After"])
    assert (await gateway.client("viewer-token").get("/api/v1/caller")).status_code == 200
