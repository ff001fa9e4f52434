"""The files of a bus's keys: those that sign, and those of before that are still accepted.

`NAME.nk` is the seed of a key that signs, `NAME.old` has the public keys that it replaces, and
`NAME.pub` names an account. Everything else in a bus's directory is made of them, so a change of
keys that is interrupted between any two files is completed by the next run.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import nkeys

from schemas.account_rules import Account
from schemas.permissions import AGENT, BOOTSTRAP, GATEWAY, POD, REGION, SERVICES, USER_ROLES, rules
from services.bus.nats.credentials_file import claims_of_token
from services.bus.nats.nats_accounts import (
    OPERATOR_KEY,
    OPERATOR_SIGNING_KEY,
    REVOKER,
    SYSTEM_KEY,
    BusKeys,
    Key,
    account_key,
    account_names,
    key_names,
    kind_of_key,
    new_seed,
    role_key,
)
from services.primitives.atomic_files import write_secret
from services.primitives.errors import NavarchError

ACCOUNT: Final = re.compile(r"A[A-Z2-7]{55}")
TOKEN: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+")
PRELOADED: Final = re.compile(r"^\s+(A[A-Z2-7]{55}): (\S+)$", re.MULTILINE)
OPERATOR_LINE: Final = re.compile(r"^operator: (.+)$", re.MULTILINE)
ROTATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "agents": (role_key(AGENT), role_key(BOOTSTRAP), role_key(POD)),
    "operator-key": (OPERATOR_KEY, OPERATOR_SIGNING_KEY, role_key(REVOKER)),
    **{role: (role_key(role),) for role in (*SERVICES, GATEWAY, *USER_ROLES)},
    "regions": (role_key(REGION),),
    "all": tuple(key_names(rules())),
}
"""What `navarch nats-config rotate` replaces together."""


class UnusableKeyError(NavarchError):
    """A key's file is lost, damaged or of another time."""

    def __init__(self, file: Path, problem: str) -> None:
        self.file, self.problem = file, problem
        what = next((what for what, names in ROTATIONS.items() if file.stem in names), "")
        replaces = f", or replace it: `navarch nats-config rotate {what}`" if what else ""
        super().__init__(f"{file} is {problem}: restore it from a backup{replaces}")


def operators_of(text: str) -> list[str]:
    """The operators' tokens in accounts.conf, the one that signs first. Pure."""
    return TOKEN.findall("".join(OPERATOR_LINE.findall(text)[:1]))


def stated_keys(text: str) -> dict[str, tuple[str, ...]]:
    """The public keys by name that accounts.conf states. Pure."""
    found: dict[str, tuple[str, ...]] = {}
    for token in operators_of(text):
        claims = claims_of_token(token)
        signing = claims.get("nats", {}).get("signing_keys", ())
        for name, keys in ((OPERATOR_KEY, (claims.get("sub"),)), (OPERATOR_SIGNING_KEY, signing)):
            found[name] = (*found.get(name, ()), *keys)
    names = {f"-{each}": account_key(each) for each in Account} | {"SYS": SYSTEM_KEY}
    for public, token in PRELOADED.findall(text):
        claims = claims_of_token(token)
        for ending, name in names.items():
            if str(claims.get("name")).endswith(ending):
                found[name] = (public,)
        for scope in claims.get("nats", {}).get("signing_keys", ()):
            name = role_key(scope["role"])
            found[name] = (*found.get(name, ()), scope["key"])
    return found


class KeyFiles:
    """The keys below `directory`, compared with those that accounts.conf states."""

    def __init__(self, directory: Path, stated: Mapping[str, tuple[str, ...]]) -> None:
        self._directory = directory
        self._stated = stated
        self.written: list[Path] = []

    def read(self) -> BusKeys:
        """Read all keys, and make those that there never were; UnusableKeyError for a lost one."""
        accounts = {name: self._account(name) for name in account_names()}
        seeds = {name: self._seed(name) for name in key_names(rules())}
        accepted = {name: old for name in seeds if (old := self._old(name))}
        return BusKeys(seeds=seeds, accounts=accounts, accepted=accepted)

    def renew(self, name: str) -> None:
        """Make another key, unless that was done; what the one before signed stays accepted."""
        old, file = self._file(name, "old"), self._file(name, "nk")
        if not old.exists():
            before = self._stated.get(name) or (Key(_text(file)).public,)
            self._write(old, "\n".join(before))
        replaced = self._old(name)
        if not file.exists() or _public(file) in ("", *replaced):
            self._write(file, new_seed(kind_of_key(name)))

    def retire(self, name: str) -> None:
        """Accept no longer what the keys before have signed."""
        self._file(name, "old").unlink(missing_ok=True)

    def _file(self, name: str, kind: str) -> Path:
        return self._directory / f"{name}.{kind}"

    def _account(self, name: str) -> str:
        file, stated = self._file(name, "pub"), self._stated.get(name, ())
        if not file.exists():
            # Its own key signs nothing: it would permit anything, and could not be replaced.
            self._write(file, *(stated or (Key(new_seed("account")).public,)))
        public = _text(file)
        if not ACCOUNT.fullmatch(public) or (stated and public not in stated):
            raise UnusableKeyError(file, "damaged")
        return public

    def _seed(self, name: str) -> str:
        file, stated = self._file(name, "nk"), set(self._stated.get(name, ()))
        if not file.exists():
            if stated:
                raise UnusableKeyError(file, "lost")
            self._write(file, new_seed(kind_of_key(name)))
        public, old = _public(file), set(self._old(name))
        if not public:
            raise UnusableKeyError(file, "damaged")
        if stated and public not in stated and old != stated:
            raise UnusableKeyError(file, "not the key that accounts.conf states")
        return _text(file)

    def _old(self, name: str) -> tuple[str, ...]:
        """The public keys that are still accepted beside the one that signs."""
        file = self._file(name, "old")
        if not file.exists():
            return ()
        found = tuple(_text(file).split())
        if stray := set(found) - set(self._stated.get(name, found)):
            raise NavarchError(
                f"{file} names a key that the bus accepts no longer ({', '.join(sorted(stray))}): "
                "it is left from an earlier rotation; remove it"
            )
        return found

    def _write(self, file: Path, text: str) -> None:
        write_secret(file, text + "\n")
        self.written.append(file)


def _text(file: Path) -> str:
    return file.read_text(encoding="latin-1").strip()


def _public(file: Path) -> str:
    """The public key of a seed; empty if the file has none."""
    try:
        return Key(_text(file)).public
    except (ValueError, nkeys.NkeysError):
        return ""
