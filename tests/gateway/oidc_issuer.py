"""An OpenID Connect provider: discovery, keys that rotate, and tokens, also forged ones."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.serving import serving

AUDIENCE = "navarch"
Kind = Literal["RSA", "EC"]


@cache
def private_key(kind: Kind, number: int) -> Any:  # noqa: ARG001 - the key of the cache
    """A key pair; the same at every call, as making one takes a while."""
    if kind == "RSA":
        return rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())


def public_jwk(kind: Kind, number: int) -> dict[str, Any]:
    """Return the public half of a key, as a provider publishes it."""
    public = private_key(kind, number).public_key()
    found = (RSAAlgorithm if kind == "RSA" else ECAlgorithm).to_jwk(public, as_dict=True)
    algorithm = "RS256" if kind == "RSA" else "ES256"
    return {**found, "kid": f"{kind}-{number}", "use": "sig", "alg": algorithm}


def encoded(value: Any) -> str:
    """Return a part of a JWT."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@dataclass(slots=True)
class OidcIssuer:
    """Holds what the provider answers, and what it was asked."""

    url: str = ""
    keys: list[dict[str, Any]] = field(
        default_factory=lambda: [public_jwk("RSA", 1), public_jwk("EC", 1)]
    )
    asked: list[str] = field(default_factory=list)
    """Paths, in order."""
    down: bool = False
    hangs: bool = False
    raw: bytes = b""
    """What it answers instead of its keys."""
    discovery: dict[str, Any] = field(default_factory=dict)
    """Replaces fields of the discovery document."""

    async def discover(self, request: Request) -> Response:
        """Say where the keys are."""
        self.asked.append(request.url.path)
        found = {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.discovery}
        return await self._answer(JSONResponse(found))

    async def publish(self, request: Request) -> Response:
        """Give the keys."""
        self.asked.append(request.url.path)
        return await self._answer(
            Response(self.raw) if self.raw else JSONResponse({"keys": self.keys})
        )

    async def _answer(self, well: Response) -> Response:
        if self.hangs:
            await asyncio.Event().wait()
        return Response(status_code=503) if self.down else well

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return the claims of a token that is valid now; None removes one."""
        now = int(time.time())
        found = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "groups": ["gpu-admins"],
            "iat": now,
            "exp": now + 300,
            **changes,
        }
        return {key: value for key, value in found.items() if value is not None}

    def token(
        self,
        kind: Kind = "RSA",
        number: int = 1,
        headers: dict[str, Any] | None = None,
        algorithm: str = "",
        **changes: Any,
    ) -> str:
        """Sign a token."""
        algorithm = algorithm or ("RS256" if kind == "RSA" else "ES256")
        about = {"kid": f"{kind}-{number}", **(headers or {})}
        key = private_key(kind, number)
        return jwt.encode(self.claims(**changes), key, algorithm, about)

    def unsigned(self, algorithm: str = "none") -> str:
        """Make a token without a signature."""
        head = {"alg": algorithm, "typ": "JWT", "kid": "RSA-1"}
        return f"{encoded(head)}.{encoded(self.claims())}."

    def signed_with_public_key(self, form: Literal["pem", "der", "jwk"]) -> str:
        """Make a token whose secret everyone can read at the provider."""
        public = private_key("RSA", 1).public_key()
        secrets = {
            "pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            "der": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
            "jwk": json.dumps(public_jwk("RSA", 1)).encode(),
        }
        head = encoded({"alg": "HS256", "typ": "JWT", "kid": "RSA-1"})
        signed = f"{head}.{encoded(self.claims())}"
        mac = hmac.new(secrets[form], signed.encode(), hashlib.sha256).digest()
        return f"{signed}.{encoded(mac)}"


@asynccontextmanager
async def oidc_issuer() -> AsyncIterator[OidcIssuer]:
    """Serve one on a free port of this machine."""
    found = OidcIssuer()
    routes = [
        Route("/.well-known/openid-configuration", found.discover),
        Route("/keys", found.publish),
    ]
    async with serving(Starlette(routes=routes)) as found.url:
        yield found
