"""Google's issuers of access tokens, as its documentation has them, and strict.

The token endpoint (RFC 7523, signatures are checked), the security token service (RFC 8693), the
impersonation of a service account, and a machine's metadata server. What they do not document
they refuse. Sources: Google's pages on OAuth for server to server applications, on workload
identity federation, on generateAccessToken and on the metadata server.
"""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, unquote

import jwt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

SCOPE = "https://www.googleapis.com/auth/compute"
ACCOUNT = "navarch@p.iam.gserviceaccount.com"
POOL = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"
METADATA = "/computeMetadata/v1/instance/service-accounts/{account}/"
PRICES_SCOPE = "https://www.googleapis.com/auth/cloud-billing.readonly"
SCOPES = {SCOPE, PRICES_SCOPE}
IAM_SCOPES = {f"https://www.googleapis.com/auth/{each}" for each in ("iam", "cloud-platform")}
"""Those that impersonation needs."""
EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
    "audience": POOL,
}
JWT_TYPE = "urn:ietf:params:oauth:token-type:jwt"
AWS_TYPE = "urn:ietf:params:aws:token-type:aws4_request"


class GoogleLogins:
    """Issues a new token for each request, and knows those that it issued."""

    def __init__(self, public_key: str) -> None:
        self.public_key = public_key
        self.url = ""
        self.scopes: dict[str, str] = {}
        """Of tokens that a key obtained."""
        self.refused_scope = ""
        self.issued: list[str] = []
        """Who issued each token."""
        self.lifetime = 3599
        self.subject_tokens = {"subject-token-1"}
        """Of the federation's own issuer, now."""
        self.logged_in = True
        """Whether the user's login is good."""
        self.answers: list[Response] = []
        """What the next requests are answered instead."""
        self.silent = asyncio.Event()
        """Nothing is answered until it is set."""
        self.silent.set()

    def routes(self) -> list[Route]:
        """Return the routes of every token endpoint, all on one host."""
        impersonation = f"/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken"
        return [
            Route("/token", self._ordered(self._token), methods=["POST"]),
            Route("/sts/v1/token", self._ordered(self._exchange), methods=["POST"]),
            Route(impersonation, self._ordered(self._impersonate), methods=["POST"]),
            Route("/issuer", self._subject),
            Route(METADATA, self._ordered(self._account)),
            Route(f"{METADATA}token", self._ordered(self._machine)),
        ]

    def accepts(self, request: Request, scope: str = SCOPE) -> bool:
        """Return whether a request has a token of this server that is valid for the scope."""
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        known = kind == "Bearer" and token in self._tokens()
        return known and self.scopes.get(token, scope) in IAM_SCOPES | {scope}

    def federation(self, source: dict[str, Any], **changes: Any) -> dict[str, Any]:
        """A file as `gcloud iam workload-identity-pools create-cred-config` writes it."""
        return {
            "type": "external_account",
            "audience": POOL,
            "subject_token_type": JWT_TYPE,
            "token_url": f"{self.url}/sts/v1/token",
            "credential_source": source,
        } | changes

    @property
    def impersonation_url(self) -> str:
        """Return the URL at which the only account is impersonated."""
        return f"{self.url}/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken"

    def _tokens(self) -> set[str]:
        return {f"ya29.{kind}-{number}" for number, kind in enumerate(self.issued)}

    def _issue(self, kind: str) -> str:
        self.issued.append(kind)
        return f"ya29.{kind}-{len(self.issued) - 1}"

    def _issued(self, kind: str, **more: str) -> Response:
        answer = {"access_token": self._issue(kind), "expires_in": self.lifetime}
        return JSONResponse(answer | {"token_type": "Bearer"} | more)

    def _ordered(self, act: Any) -> Any:
        async def answer(request: Request) -> Response:
            await self.silent.wait()
            if self.answers:
                return self.answers.pop(0)
            return await act(request)

        return answer

    async def _token(self, request: Request) -> Response:
        form = await _form(request)
        if form.get("grant_type") == "refresh_token":
            return self._login(form)
        wanted = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}
        if form | wanted != form or set(form) != {"grant_type", "assertion"}:
            return _refused("invalid_request", "")
        try:
            claims = jwt.decode(
                form["assertion"],
                self.public_key,
                algorithms=["RS256"],
                audience="https://oauth2.googleapis.com/token",
                issuer=ACCOUNT,
                options={"require": ["iss", "aud", "iat", "exp", "scope"]},
            )
        except jwt.PyJWTError as error:
            return _refused("invalid_grant", str(error))
        scope = str(claims["scope"])
        if scope not in SCOPES | IAM_SCOPES or claims["exp"] - claims["iat"] > 3600:
            return _refused("invalid_scope", scope)
        if scope == self.refused_scope:
            return _refused("access_denied", scope)
        answer = self._issued("key")
        self.scopes[f"ya29.key-{len(self.issued) - 1}"] = scope
        return answer

    def _login(self, form: dict[str, str]) -> Response:
        """A user's, whose refresh token may be revoked."""
        proof = {"client_id": "c", "client_secret": "s", "refresh_token": "1//refresh"}
        if form != proof | {"grant_type": "refresh_token"}:
            return _refused("invalid_request", "")
        if not self.logged_in:
            return _refused("invalid_grant", "Token has been expired or revoked.")
        return self._issued("user")

    async def _exchange(self, request: Request) -> Response:
        form = await _form(request)
        proof = {key: form.pop(key, "") for key in ("subject_token", "subject_token_type")}
        scope = form.pop("scope", "")
        if form != EXCHANGE or scope not in SCOPES | IAM_SCOPES:
            return _refused("invalid_request", f"{form} {scope}")
        kind, token = proof["subject_token_type"], proof["subject_token"]
        of_file = kind == JWT_TYPE and token in self.subject_tokens
        if not of_file and not (kind == AWS_TYPE and _is_signed_by_aws(token)):
            return _refused("invalid_grant", "The subject token is not valid")
        issued = {"issued_token_type": EXCHANGE["requested_token_type"]}
        return self._issued("federation", **issued)

    async def _subject(self, request: Request) -> Response:
        """The federation's own issuer, where it is asked by HTTP."""
        if request.headers.get("Metadata") != "true":
            return Response(status_code=403)
        return JSONResponse({"value": min(self.subject_tokens)})

    async def _impersonate(self, request: Request) -> Response:
        if not self.accepts(request):
            body = {"error": {"code": 401, "message": "no token", "status": "UNAUTHENTICATED"}}
            return JSONResponse(body, 401)
        asked = await request.json()
        if set(asked) - {"delegates", "scope", "lifetime"} or asked.get("scope") not in [
            [each] for each in SCOPES
        ]:
            body = {"error": {"code": 400, "message": "no scope", "status": "INVALID_ARGUMENT"}}
            return JSONResponse(body, 400)
        until = datetime.now(UTC) + timedelta(seconds=self.lifetime)
        expires = until.strftime("%Y-%m-%dT%H:%M:%SZ")
        return JSONResponse({"accessToken": self._issue("impersonation"), "expireTime": expires})

    async def _account(self, request: Request) -> Response:
        if not _is_metadata(request, {"recursive"}):
            return Response(status_code=403)
        account = {"aliases": ["default"], "email": ACCOUNT, "scopes": [SCOPE]}
        return JSONResponse(account, headers={"Metadata-Flavor": "Google"})

    async def _machine(self, request: Request) -> Response:
        if not _is_metadata(request, {"scopes"}):
            return Response(status_code=403)
        answer = self._issued("machine")
        answer.headers["Metadata-Flavor"] = "Google"
        return answer


def _is_metadata(request: Request, known: set[str]) -> bool:
    """It refuses what a proxy passed on, and what lacks its header; it has one account."""
    if request.path_params["account"] not in ("default", ACCOUNT):
        return False
    if set(request.query_params) - known or "X-Forwarded-For" in request.headers:
        return False
    return request.headers.get("Metadata-Flavor") == "Google"


def _is_signed_by_aws(token: str) -> bool:
    """Whether it is a signed request for GetCallerIdentity that is good at this pool alone."""
    asked = json.loads(unquote(token))
    headers = {each["key"].lower(): each["value"] for each in asked["headers"]}
    return (
        asked["method"] == "POST"
        and asked["url"].startswith("https://sts.eu-west-1.amazonaws.com")
        and "Action=GetCallerIdentity" in asked["url"]
        and headers["x-goog-cloud-target-resource"] == POOL
        and headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIATEST/")
        and {"x-amz-date", "host"} <= headers.keys()
    )


async def _form(request: Request) -> dict[str, str]:
    if request.headers.get("Content-Type") != "application/x-www-form-urlencoded":
        return {}
    return {key: value[0] for key, value in parse_qs((await request.body()).decode()).items()}


def _refused(code: str, text: str) -> Response:
    return JSONResponse({"error": code, "error_description": text}, 400)
