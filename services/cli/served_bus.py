"""The bus that `navarch serve` starts: its keys and credentials, below the data directory.

The first start makes them, later ones keep them. What is stored belongs to one of the server's
accounts, and is moved where this start has another than the one before: with or without `--open`,
or with new keys.
"""

import shlex
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import nkeys

from schemas.permissions import OPERATOR, SERVICES, Account, rules, user_inbox
from services.bus.nats.credentials_file import (
    ROLE_TAG,
    claims_of,
    claims_of_token,
    role_and_key,
)
from services.bus.nats.embedded_server import OPEN_ACCOUNT, move_store
from services.bus.nats.nats_accounts import (
    OPERATOR_KEY,
    SYSTEM_KEY,
    AgentKeys,
    Key,
    account_key,
    credentials,
    key_names,
    role_key,
)
from services.cli.bus_client import token_of, user_name
from services.cli.fleet_discovery import CREDS_VARIABLE
from services.cli.nats_config_files import (
    ACCOUNTS,
    PRELOADED,
    REVOCATION_FILE,
    SIGNING_FILE,
    role_keys,
    write_accounts,
)
from services.primitives.atomic_files import write_secret
from services.primitives.errors import SetupError

FOLDER: Final = "bus"
OWNER_FILE: Final = "owner.creds"
SIGNING_VARIABLE: Final = "NAVARCH_NATS_AGENT_SIGNING_FILE"
REVOCATION_VARIABLE: Final = "NAVARCH_NATS_REVOCATION_FILE"
SIGNER: Final = "provisioner"
"""The service that makes and revokes the credentials of nodes."""


class ServedBus(msgspec.Struct, frozen=True):
    """The bus of a fleet's data directory; `is_open`: it lets every client in."""

    data_dir: Path
    is_open: bool

    @property
    def directory(self) -> Path:
        """Keys, credentials and accounts, as `navarch nats-config` writes them."""
        return (self.data_dir / FOLDER).resolve()

    @property
    def config(self) -> Path | None:
        """The part of the server's configuration that says who may do what."""
        return None if self.is_open else self.directory / ACCOUNTS

    @property
    def operator_file(self) -> str:
        """Credentials of the user who serves the fleet; empty: none are needed."""
        return "" if self.is_open else str(self.directory / OWNER_FILE)

    def variables(self, service: str) -> dict[str, str]:
        """Where a service finds its credentials."""
        if self.is_open:
            return {}
        found = {CREDS_VARIABLE: str(self.directory / "creds" / f"{service}.creds")}
        if service == SIGNER:
            found[SIGNING_VARIABLE] = str(self.directory / SIGNING_FILE)
            found[REVOCATION_VARIABLE] = str(self.directory / REVOCATION_FILE)
        return found

    def prepare(self, store: Path, fleet: str, at: datetime) -> str:
        """Write what is missing, and move what is `store`d to the account; say so if it was moved.

        The server must not run.
        """
        account = OPEN_ACCOUNT
        if not self.is_open:
            self._check()
            seeds = write_accounts(self.directory, fleet, at).seeds()
            self._write_owner(role_keys(OPERATOR, seeds), at)
            account = Key(seeds[account_key(Account.FLEET)]).public
        if not move_store(store, account):
            return ""
        return (
            "the fleet's streams were moved to the open account: credentials protect them no longer"
            if self.is_open
            else "the fleet's streams were moved to its own account: only credentials open them now"
        )

    def command(self, url: str) -> str:
        """How the `nats` command reaches it."""
        if self.is_open:
            return f"nats --server {url}"
        file = self.operator_file
        box = user_inbox(role_and_key(file)[1])
        return f"nats --server {url} --creds {shlex.quote(file)} --inbox-prefix {box}"

    def _write_owner(self, keys: AgentKeys, at: datetime) -> None:
        """Write the owner's credentials, which do not expire: the keys are beside them."""
        file = Path(self.operator_file)
        if not _is_signed_by(keys, file):
            made = credentials(token_of(user_name()), keys, at, tags=(ROLE_TAG + OPERATOR,))
            write_secret(file, made)

    def _check(self) -> None:
        """Raise SetupError where a key or a service's file of an earlier start is unusable."""
        keys, known = _known_keys(self.directory / ACCOUNTS)
        seeds: dict[str, str] = {}
        for name in key_names(rules()):
            file = self.directory / "keys" / f"{name}.nk"
            try:
                seeds[name] = file.read_text(encoding="ascii").strip()
                public = Key(seeds[name]).public
            except FileNotFoundError:
                # A later release may have further roles.
                if name in keys:
                    raise self._unusable(file, "lost") from None
                return
            except (OSError, ValueError, nkeys.NkeysError) as error:
                raise self._unusable(file, "damaged") from error
            if name in keys and public not in known:
                raise self._unusable(file, "damaged")
        for service in SERVICES:
            file = self.directory / "creds" / f"{service}.creds"
            if file.exists() and not _is_signed_by(role_keys(service, seeds), file):
                raise SetupError(
                    f"{file} is damaged or of other keys: remove it, and start again; it is "
                    "written again"
                )

    def _unusable(self, file: Path, what: str) -> SetupError:
        return SetupError(
            f"{file} is {what}: restore it from a backup, or remove {self.directory}; the next "
            "start then makes new keys, keeps everything that is stored, and refuses the "
            "credentials that you gave to others"
        )


def _is_signed_by(keys: AgentKeys, file: Path) -> bool:
    """Whether a credentials file is whole, and of this role."""
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return False
    claims = claims_of(text)
    found = claims.get("nats", {}).get("issuer_account"), claims.get("iss")
    return found == (keys.account, Key(keys.seed).public) and "END USER NKEY SEED" in text


def _known_keys(file: Path) -> tuple[set[str], set[str]]:
    """The names of the keys that the accounts of before were made of, and the public keys."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    names = {OPERATOR_KEY, SYSTEM_KEY, *map(account_key, Account)}
    publics: set[str] = set()
    for public, token in PRELOADED.findall(text):
        claims = claims_of_token(token)
        publics |= {public, str(claims.get("iss"))}
        for each in claims.get("nats", {}).get("signing_keys", ()):
            names.add(role_key(each["role"]))
            publics.add(each["key"])
    return names if publics else set(), publics
