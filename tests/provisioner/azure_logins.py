"""Microsoft's issuers of access tokens, as its documentation has them, and strict.

Entra's token endpoint with a secret, a certificate's signed assertion or a federated token, and a
machine's metadata service. What they do not document they refuse. Sources: Microsoft's pages on
the client credentials flow, on certificate credentials, and on tokens of managed identities.
"""

import asyncio
import time
from typing import Any
from urllib.parse import parse_qs

import jwt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

AUDIENCE = "https://management.azure.com"
CLIENT, SECRET, TENANT = "client-1", "secret-of-client-1", "tenant-1"
ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class AzureLogins:
    """Issues a new token for each request, and knows those that it issued."""

    def __init__(self) -> None:
        self.url = ""
        """Of the token endpoint."""
        self.issued: list[str] = []
        """To whom each token was issued."""
        self.lifetime = 3599
        self.secrets = {SECRET}
        self.subject_tokens = {"subject-token-1"}
        """Of the federation's own issuer, now."""
        self.certificate_key = ""
        """Public key of the principal's certificate."""
        self.answers: list[Response] = []
        """What the next requests are answered instead."""
        self.silent = asyncio.Event()
        """Nothing is answered until it is set."""
        self.silent.set()

    def routes(self) -> list[Route]:
        """Entra's; the metadata service is the machine's."""
        login = f"/{TENANT}/oauth2/v2.0/token"
        return [Route(login, self._ordered(self._login), methods=["POST"])]

    def accepts(self, request: Request) -> bool:
        """Return whether a request has a token that this server issued."""
        tokens = {f"Bearer eyJ0.{number}" for number in range(len(self.issued))}
        return request.headers.get("Authorization") in tokens

    def issue(self, to: str) -> str:
        """Return a new token and record who asked for it."""
        self.issued.append(to)
        return f"eyJ0.{len(self.issued) - 1}"

    def _ordered(self, act: Any) -> Any:
        async def answer(request: Request) -> Response:
            await self.silent.wait()
            if self.answers:
                return self.answers.pop(0)
            return await act(request)

        return answer

    async def _login(self, request: Request) -> Response:
        form = {key: value[0] for key, value in parse_qs((await request.body()).decode()).items()}
        wanted = {
            "grant_type": "client_credentials",
            "client_id": CLIENT,
            "scope": f"{AUDIENCE}/.default",
        }
        proof = {key: value for key, value in form.items() if key not in wanted}
        if form | wanted != form:
            return _refused("AADSTS70: no such request")
        match proof:
            case {"client_secret": secret, **others} if not others and secret in self.secrets:
                to = "principal"
            case {"client_assertion": said, "client_assertion_type": kind, **others} if (
                not others and kind == ASSERTION
            ):
                to = self._whose(said)
            case _:
                to = ""
        if not to:
            return _refused("AADSTS7000215: Invalid client secret provided.")
        answer = {"access_token": self.issue(to), "expires_in": self.lifetime}
        return JSONResponse(answer | {"token_type": "Bearer", "ext_expires_in": self.lifetime})

    def _whose(self, assertion: str) -> str:
        if assertion in self.subject_tokens:
            return "federation"
        try:
            claims = jwt.decode(
                assertion,
                self.certificate_key,
                algorithms=["RS256", "PS256"],
                audience=f"{self.url}/{TENANT}/oauth2/v2.0/token",
                issuer=CLIENT,
                options={"require": ["iss", "sub", "aud", "exp", "jti"]},
            )
        except (jwt.PyJWTError, ValueError):
            return ""
        known = {"x5t", "x5t#S256"} & jwt.get_unverified_header(assertion).keys()
        return "certificate" if claims["sub"] == CLIENT and known else ""

    async def metadata(self, request: Request) -> Response:
        """Answer as a machine's metadata service."""
        if request.headers.get("Metadata") != "true" or "X-Forwarded-For" in request.headers:
            # This is how a client looks whether the service is there.
            return JSONResponse({"error": "invalid_request"}, 400)
        await self.silent.wait()
        if self.answers:
            return self.answers.pop(0)
        query = dict(request.query_params)
        if (
            set(query) - {"api-version", "resource", "client_id"}
            or query.get("api-version") != "2018-02-01"
            or query.get("resource") not in (AUDIENCE, f"{AUDIENCE}/")
        ):
            return JSONResponse({"error": "invalid_resource"}, 400)
        now = int(time.time())
        # Numbers are strings, as the metadata service has them.
        answer = {
            "access_token": self.issue("machine " + query.get("client_id", "system")),
            "expires_in": str(self.lifetime),
            "expires_on": str(now + self.lifetime),
            "not_before": str(now - 300),
            "resource": query["resource"],
            "token_type": "Bearer",
        }
        return JSONResponse(answer)


def _refused(text: str) -> Response:
    error = {"error": "invalid_client", "error_description": text, "error_codes": [7000215]}
    return JSONResponse(error, 401)
