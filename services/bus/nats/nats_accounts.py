"""Credentials and the server's accounts, as signed tokens (JWT): who may say what, kept by keys.

One operator; an account for the streams, and those of services, agents and users; a signing key for
each role. An account's own key signs nothing: only its public part, which names the account, is
kept. What a role may do is in its account's token, which is part of the server's
configuration, and a user's token names nothing but its role and its node. So credentials outlive
an upgrade that changes what roles may do, and the provisioner, which holds the agents' signing key,
makes credentials for each new node that can do what an agent may and no more, without asking the
server.
"""

import base64
import hashlib
import hmac
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import nkeys

from schemas.account_rules import Account, Rules, Share
from schemas.permissions import (
    AGENT,
    BOOTSTRAP,
    CONNECTIONS_MAX,
    inbox,
)
from services.bus.nats.credentials_file import CREDENTIALS, claims_of_token
from services.primitives.errors import SetupError

OPERATOR_KEY: Final = "operator"
OPERATOR_SIGNING_KEY: Final = "operator-signing"
"""Signs accounts' tokens as the operator's own key does; it can be replaced."""
SYSTEM_KEY: Final = "system-account"
REVOKER: Final = "revoker"
"""User of the system account that delivers accounts' tokens to the server, and may nothing else."""
CLAIMS_UPDATE: Final = "$SYS.REQ.CLAIMS.UPDATE"
SERVERS_STATE: Final = "$SYS.REQ.SERVER.PING.VARZ"
NO_LIMIT: Final = -1
ANSWER_SECONDS: Final = 10
"""How long a client that may answer each message has for it."""
NS: Final = 1_000_000_000


class AgentKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what it takes to make the credentials of a role's users."""

    account: str
    """Public key of the account that the users belong to."""
    seed: str
    """Seed of the role's signing key."""
    bootstrap_seed: str = ""
    """Seed of the key that signs new nodes' bootstrap credentials; empty in files of before."""


class BusKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the keys of a fleet's bus, by name."""

    seeds: dict[str, str]
    """Of the keys that sign."""
    accounts: dict[str, str]
    """Public keys of the accounts, which sign nothing."""
    accepted: dict[str, tuple[str, ...]] = {}
    """Public keys that signed before, where what they signed is still accepted."""


class Key:
    """Holds a key pair."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self._pair = nkeys.from_seed(bytearray(seed.encode()))
        self.public: str = self._pair.public_key.decode()

    def sign(
        self,
        kind: str,
        subject: str,
        name: str,
        claims: Mapping[str, Any],
        at: int,
        until: int = 0,
    ) -> str:
        """Make a token about `subject`; 0: it holds for ever."""
        body: dict[str, Any] = {
            "iat": at,
            "iss": self.public,
            "name": name,
            "sub": subject,
            "nats": {**claims, "type": kind, "version": 2},
        }
        if until:
            body["exp"] = until
        digest = hashlib.sha256(msgspec.json.encode(body)).digest()
        body["jti"] = base64.b32encode(digest).decode().rstrip("=")
        head = _base64(msgspec.json.encode({"typ": "JWT", "alg": "ed25519-nkey"}))
        signed = f"{head}.{_base64(msgspec.json.encode(body))}"
        return f"{signed}.{_base64(self._pair.sign(signed.encode()))}"


def new_seed(kind: str, randomness: bytes = b"") -> str:
    """Make the seed of an `operator`, `account` or `user` key."""
    prefix = {
        "operator": nkeys.PREFIX_BYTE_OPERATOR,
        "account": nkeys.PREFIX_BYTE_ACCOUNT,
        "user": nkeys.PREFIX_BYTE_USER,
    }[kind]
    return str(nkeys.encode_seed(randomness or os.urandom(32), prefix).decode())


def kind_of_key(name: str) -> str:
    """Return the kind of the key of this name; all but the operator's two are accounts' keys."""
    return "operator" if name in (OPERATOR_KEY, OPERATOR_SIGNING_KEY) else "account"


def key_names(roles: Mapping[str, Rules]) -> list[str]:
    """Every key that signs something on a fleet's bus."""
    return [OPERATOR_KEY, OPERATOR_SIGNING_KEY, *map(role_key, (REVOKER, *roles))]


def account_names() -> list[str]:
    """Return every account of a fleet's bus, by the names of their keys."""
    return [SYSTEM_KEY, *map(account_key, Account)]


def account_key(account: Account) -> str:
    """Return the name of an account's key."""
    return f"account-{account}"


def role_key(role: str) -> str:
    """Return the name of a role's signing key."""
    return f"role-{role}"


class ServerTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the tokens that the server's configuration states."""

    operator: str
    system_account: str
    """Public key of the server's own account."""
    accounts: dict[str, str]
    """Public key -> token."""


def server_tokens(
    fleet: str,
    roles: Mapping[str, Rules],
    shares: Sequence[Share],
    keys: BusKeys,
    at: datetime,
    revoked: Mapping[Account, Mapping[str, int]] = {},
    connections: Mapping[str, int] = CONNECTIONS_MAX,
) -> ServerTokens:
    """Tokens made of the keys, the roles' rules and what accounts share. Pure.

    `connections`: account -> how many it may have.
    `revoked`: account -> public keys of users, each with the time until which its tokens are void.
    """
    claims: dict[str, Any] = {"limits": _limits(), "signing_keys": _scopes(REVOKER, REVOKES, keys)}
    accounts = {keys.accounts[SYSTEM_KEY]: ("SYS", claims)}
    for account in Account:
        claims = {
            "signing_keys": [
                scope
                for role, each in roles.items()
                if each.account == account
                for scope in _scopes(role, each, keys)
            ],
            "exports": [
                _export(each) for each in shares if each.owner == account and each.exported
            ],
            "imports": [
                _import(each, keys.accounts) for each in shares if account in each.importers
            ],
            "limits": _limits(streams=account == Account.FLEET)
            | {"conn": connections.get(account, NO_LIMIT)},
        }
        if refused := revoked.get(account):
            claims["revocations"] = dict(refused)
        accounts[keys.accounts[account_key(account)]] = f"{fleet}-{account}", claims
    return _signed(fleet, keys, accounts, at)


def region_tokens(
    fleet: str,
    roles: Mapping[str, Rules],
    names: Mapping[str, str],
    keys: BusKeys,
    at: datetime,
    revoked: Mapping[str, int] = {},
) -> ServerTokens:
    """Tokens for a region's server, which knows agents and passes on what they say. Pure.

    `roles`: those that may connect to it. `names`: what it passes on under another name -> that
    name. `revoked`: as in `server_tokens`, of the agents' account.
    """
    claims: dict[str, Any] = {
        "signing_keys": [
            scope for role, each in roles.items() for scope in _scopes(role, each, keys)
        ],
        "mappings": {subject: [{"subject": _numbered(name)}] for subject, name in names.items()},
        "limits": _limits() | {"conn": CONNECTIONS_MAX[Account.AGENTS]},
    }
    if revoked:
        claims["revocations"] = dict(revoked)
    accounts = {
        keys.accounts[SYSTEM_KEY]: ("SYS", {"limits": _limits()}),
        keys.accounts[account_key(Account.AGENTS)]: (f"{fleet}-region", claims),
    }
    return _signed(fleet, keys, accounts, at)


def _signed(
    fleet: str, keys: BusKeys, accounts: Mapping[str, tuple[str, dict[str, Any]]], at: datetime
) -> ServerTokens:
    """What the operator's key signs; `accounts`: public key -> name and claims."""
    moment = int(at.timestamp())
    operator, system = Key(keys.seeds[OPERATOR_KEY]), keys.accounts[SYSTEM_KEY]
    operates = {
        "system_account": system,
        "signing_keys": [Key(keys.seeds[OPERATOR_SIGNING_KEY]).public],
    }
    return ServerTokens(
        operator=operator.sign("operator", operator.public, fleet, operates, moment),
        system_account=system,
        accounts={
            public: operator.sign("account", public, name, claims, moment)
            for public, (name, claims) in accounts.items()
        },
    )


def _numbered(wildcard: str) -> str:
    """`a.*.*` as the target of a mapping: `a.$1.$2`."""
    numbers = itertools.count(1)
    return re.sub(r"\*", lambda _: f"${next(numbers)}", wildcard)


def credentials(
    name: str,
    keys: AgentKeys,
    at: datetime,
    *,
    tags: tuple[str, ...] = (),
    user_seed: str = "",
    until: datetime | None = None,
) -> str:
    """Make the credentials file of one user of the role that `keys` sign for; None: for ever."""
    user = Key(user_seed or new_seed("user"))
    token = _user_token(name, keys, user.public, at, tags=tags, until=until)
    return CREDENTIALS.format(token=token, seed=user.seed)


def claims_lookup(account: str) -> str:
    """Return the subject of the server's answer with an account's current token."""
    return f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP"


def connections_of(account: str) -> str:
    """Return the subject of each server's answer with an account's connections."""
    return f"$SYS.REQ.ACCOUNT.{account}.CONNZ"


REVOKES: Final = Rules(
    publish=(
        *(CLAIMS_UPDATE, claims_lookup("*"), connections_of("*"), SERVERS_STATE),
        f"{inbox(REVOKER)}.>",
    ),
    subscribe=(f"{inbox(REVOKER)}.>",),
)


def revoker_credentials(keys: BusKeys, at: datetime) -> str:
    """Make the credentials of the system account's user that delivers accounts' tokens."""
    signer = AgentKeys(account=keys.accounts[SYSTEM_KEY], seed=keys.seeds[role_key(REVOKER)])
    return credentials(REVOKER, signer, at)


def with_revocations(
    keys: AgentKeys, token: str, revoked: Mapping[str, int], after: int = 0
) -> str:
    """Make an account's token again with these revocations; `keys.seed`: the operator's. Pure.

    It is a second newer than the one before and than `after`: one that `navarch nats-config` makes
    later must be the newest.
    """
    claims = claims_of_token(token)
    body = {name: each for name, each in claims["nats"].items() if name != "revocations"}
    if revoked:
        body["revocations"] = dict(revoked)
    moment = max(claims["iat"], after) + 1
    return Key(keys.seed).sign("account", claims["sub"], claims["name"], body, moment)


def agent_token(
    keys: AgentKeys, pool: str, node: str, public: str, at: datetime, until: datetime
) -> str:
    """Make the token of a node's agent, for its own subjects alone."""
    name = f"{AGENT} {pool}/{node}"
    return _user_token(name, keys, public, at, tags=_tags(pool, node), until=until)


def rejoin_token(
    keys: AgentKeys, pool: str, node: str, public: str, at: datetime, until: datetime
) -> str:
    """Make the token with which a node whose other token has expired may request one."""
    signer = msgspec.structs.replace(keys, seed=keys.bootstrap_seed)
    name = f"{BOOTSTRAP} {pool}/{node}"
    return _user_token(name, signer, public, at, tags=_tags(pool, node), until=until)


def bootstrap_credentials(
    keys: AgentKeys, pool: str, node: str, secret: str, at: datetime, until: datetime
) -> str:
    """Make the credentials with which a new node may ask for its agent's, `until` then.

    The same for the same launch (`secret` names it), so that asking a provider again for the same
    machine asks with the same words; without the signing key they cannot be predicted.
    """
    seed = f"{pool}/{node}/{secret}/{at.timestamp()}".encode()
    randomness = hmac.new(keys.bootstrap_seed.encode(), seed, hashlib.sha256).digest()
    user = Key(new_seed("user", randomness))
    signer = msgspec.structs.replace(keys, seed=keys.bootstrap_seed)
    token = _user_token(
        f"{BOOTSTRAP} {pool}/{node}", signer, user.public, at, tags=_tags(pool, node), until=until
    )
    return CREDENTIALS.format(token=token, seed=user.seed)


def read_agent_keys(file: Path) -> AgentKeys:
    """Read the agents' signing key; raise SetupError where it cannot be used."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=AgentKeys)
    except OSError as error:
        raise SetupError(
            f"nats.agent_signing_file {file} cannot be read ({error.strerror}): "
            "`navarch nats-config` writes it"
        ) from error
    except msgspec.DecodeError as error:
        raise SetupError(f"nats.agent_signing_file {file} is not such a file: {error}") from error


# --- parts ---------------------------------------------------------------------------------------


def _tags(pool: str, node: str) -> tuple[str, ...]:
    return f"pool:{pool}", f"node:{node}"


def _user_token(
    name: str,
    keys: AgentKeys,
    public: str,
    at: datetime,
    *,
    tags: tuple[str, ...] = (),
    until: datetime | None = None,
) -> str:
    claims: dict[str, Any] = {"issuer_account": keys.account}
    if tags:
        claims["tags"] = list(tags)
    moments = [int(each.timestamp()) for each in (at, until) if each is not None]
    return Key(keys.seed).sign("user", public, name, claims, *moments)


def _export(share: Share) -> dict[str, Any]:
    if share.live:
        return {"name": share.subject, "subject": share.subject, "type": "stream"}
    return {
        "name": share.subject,
        "subject": share.subject,
        "type": "service",
        "response_type": "Stream" if share.many else "Singleton",
        "response_threshold": int(share.reply_seconds * NS),
    }


def _import(share: Share, publics: Mapping[str, str]) -> dict[str, Any]:
    found = {
        "name": share.subject,
        "subject": share.subject,
        "account": publics[account_key(share.owner)],
        "type": "stream" if share.live else "service",
    }
    return found | ({"local_subject": share.local_subject} if share.local_subject else {})


def _scopes(role: str, rules: Rules, keys: BusKeys) -> list[dict[str, Any]]:
    """A role as the account's token states it, for each key that its credentials may be of."""
    publish: dict[str, Any] = {"allow": list(rules.publish)}
    if rules.publish_not:
        publish["deny"] = list(rules.publish_not)
    subscribe: dict[str, Any] = {"allow": list(rules.subscribe)}
    if rules.subscribe_not:
        subscribe["deny"] = list(rules.subscribe_not)
    template: dict[str, Any] = {
        "pub": publish,
        "sub": subscribe,
        "subs": rules.subscriptions_max,
        "data": NO_LIMIT,
        "payload": rules.payload_bytes_max,
        "allowed_connection_types": list(rules.connections),
    }
    if rules.answers:
        template["resp"] = {"max": 1, "ttl": ANSWER_SECONDS * NS}
    name = role_key(role)
    return [
        {"kind": "user_scope", "key": key, "role": role, "template": template}
        for key in (Key(keys.seeds[name]).public, *keys.accepted.get(name, ()))
    ]


def _limits(*, streams: bool = False) -> dict[str, Any]:
    names = ["subs", "data", "payload", "imports", "exports", "conn", "leaf"]
    if streams:
        names += ["mem_storage", "disk_storage", "streams", "consumer"]
    return {**dict.fromkeys(names, NO_LIMIT), "wildcards": True}


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
