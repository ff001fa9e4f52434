"""Joins this machine to a fleet with a one-time token, and takes it out again.

What the machine keeps is written before the request, and the token's settings after the answer: a
join that is killed at any step is begun again with the same token. The token carries the authority
of the bus, so that nothing is sent to a server that the fleet's authority has not signed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from agent.enrollment import JoinProof, fetch, key_file, rejoin_file
from agent.settings import AgentConfig, environment_values, load
from schemas.join_tokens import PREFIX, JoinToken, decode_token, encode_token, fingerprint_of
from schemas.permissions import AGENT, BOOTSTRAP
from services.bus.port import Bus
from services.primitives.atomic_files import write_secret
from services.primitives.errors import ConfigurationError, LoginRefused, NavarchError, Unavailable

JOIN_SECONDS_MAX: Final = 60.0
CONNECT_SECONDS_MAX: Final = 15.0
SETTINGS_FILE: Final = Path("/etc/navarch/agent.env")
STATE_FOLDER: Final = Path("/var/lib/navarch-agent")
FINGERPRINT_CHARS: Final = 16
FROM_TOKEN: Final = frozenset(
    f"NAVARCH_{each}"
    for each in (
        *("POOL", "NODE", "INSTANCE", "NATS_URL", "GPU_COUNT", "RDMA_DEVICES", "DRIVER_WAIT"),
        *("RDMA_LINK_LAYER", "RDMA_GBIT_PER_SECOND", "NVLINKS", "NVLINK_GBYTE_PER_SECOND"),
        *("PCIE_WIDTH", "PCIE_GENERATION"),
        *("HEARTBEAT_INTERVAL", "HEARTBEAT_TTL", "SAMPLE_INTERVAL", "TELEMETRY_INTERVAL"),
    )
)
"""Settings that a token may state. None of them names a command or a library: who gives a token
runs nothing on the machine."""


class JoinPlace(NamedTuple):
    """Names where the agent of this machine keeps its settings and its state."""

    settings: Path = SETTINGS_FILE
    state: Path = STATE_FOLDER

    @property
    def credentials(self) -> Path:
        """Return the file of the node's own credentials."""
        return self.state / "nats.creds"

    @property
    def token_credentials(self) -> Path:
        """Return the file of the token's credentials, until the node has its own."""
        return self.state / "join.creds"

    @property
    def token(self) -> Path:
        """Return the file of the token, with which a join that was interrupted goes on."""
        return self.state / "join.token"

    @property
    def authority(self) -> Path:
        """Return the file of the bus's authority, in a folder that the unit may write."""
        return self.settings.with_name("bus-ca.pem")


Connect = Callable[[AgentConfig, Path, float], Awaitable[Bus]]
"""Connects with the credentials in a file, within so many seconds."""


def read_token(text: str) -> JoinToken:
    """Return a token; ConfigurationError where the text is none."""
    try:
        return decode_token(text)
    except ValueError as error:
        raise ConfigurationError(
            f"this is no token ({error}): copy the whole word that begins with {PREFIX}, which "
            "`navarch join --print` wrote"
        ) from error


async def join(
    token: JoinToken, place: JoinPlace, connect: Connect, now: Callable[[], datetime]
) -> str:
    """Join; return a sentence about the result, or raise NavarchError with the remedy."""
    done = _is_joined(token, place)
    try:
        place.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.settings.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = _settings(token, place)
        config = load(settings)
        if token.authority:
            write_secret(place.authority, token.authority)
        if not done:
            write_secret(place.token, encode_token(token))
            write_secret(place.token_credentials, token.credentials)
            await _enroll(token, place, config, connect, now)
        write_secret(place.settings, "".join(f"{k}={v}\n" for k, v in settings.items()))
    except OSError as error:
        raise NavarchError(
            f"{error.filename or place.settings} cannot be written ({error.strerror}): run this as "
            "root, or name other places with --settings and --state"
        ) from error
    for each in (place.token_credentials, place.token):
        each.unlink(missing_ok=True)
    shown = fingerprint_of(token.authority)[:FINGERPRINT_CHARS]
    checked = f", whose authority has the fingerprint {shown}" if shown else ""
    what = "had joined already as" if done else "joined as"
    return f"{what} {token.node} of pool {token.pool} at {token.url}{checked}"


def leave(place: JoinPlace) -> str:
    """Remove what a join has written; return a sentence about the result."""
    found = [each for each in _files(place) if each.exists()]
    for each in found:
        each.unlink()
    if not found:
        return "this machine has joined no fleet"
    return f"removed {', '.join(map(str, found))}; the fleet is not asked: navarch leave NODE"


def _files(place: JoinPlace) -> list[Path]:
    config = AgentConfig(pool="-", node="-", nats_creds_file=str(place.credentials))
    return [
        *(place.settings, place.authority, place.credentials, rejoin_file(config)),
        *(key_file(config), place.token_credentials, place.token),
    ]


async def _enroll(
    token: JoinToken,
    place: JoinPlace,
    config: AgentConfig,
    connect: Connect,
    now: Callable[[], datetime],
) -> None:
    """Fetch the node's own credentials, with the reason in one sentence where that fails."""

    def connecting(file: Path) -> Awaitable[Bus]:
        return connect(config, file, CONNECT_SECONDS_MAX)

    proof = JoinProof(token.secret, now)
    try:
        async with asyncio.timeout(JOIN_SECONDS_MAX):
            await fetch(config, connecting, place.token_credentials, proof)
    except LoginRefused as error:
        ended = f"it ended at {token.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        raise NavarchError(
            f"the bus at {token.url} refuses the token: {ended}, or the fleet's keys were replaced "
            f"since it was made; make another: navarch join --print {token.node}"
        ) from error
    except Unavailable as error:
        if "encrypted" in str(error):
            raise NavarchError(
                f"the server at {token.url} is not the fleet's, by the authority in the token, so "
                f"nothing was sent ({error}): check who answers there, or make another token where "
                "the fleet's authority was replaced"
            ) from error
        raise NavarchError(
            f"nothing answers at {token.url}: let this machine reach that port (firewall, security "
            "group), check that the fleet runs and that agent.bus_url names its address, and join "
            "again with the same token"
        ) from error
    except TimeoutError as error:
        raise NavarchError(
            f"the fleet at {token.url} has not answered within {JOIN_SECONDS_MAX:g} s: check there "
            "that the provisioner and the pool-manager run (`navarch doctor`), and join again with "
            "the same token"
        ) from error


def _settings(token: JoinToken, place: JoinPlace) -> dict[str, str]:
    """The agent's variables: those that the file has, with the token's in their place."""
    found: dict[str, str] = {}
    with suppress(FileNotFoundError):
        found = environment_values(place.settings.read_text(encoding="utf-8"))
    given = {
        **token.settings,
        "NAVARCH_POOL": token.pool,
        "NAVARCH_NODE": token.node,
        "NAVARCH_NATS_URL": token.url,
    }
    refused = {name for name, text in given.items() if name not in FROM_TOKEN or "\n" in text}
    if refused:
        raise ConfigurationError(
            f"the token states {', '.join(sorted(refused))}, which no token may: it is not of this "
            "release, or was forged"
        )
    own = {
        "NAVARCH_STATE_DIR": str(place.state),
        "NAVARCH_NATS_CREDS_FILE": str(place.credentials),
    }
    if token.authority:
        own["NAVARCH_NATS_TLS_CA_FILE"] = str(place.authority)
    else:
        found.pop("NAVARCH_NATS_TLS_CA_FILE", None)
    return {**found, **given, **own}


def _is_joined(token: JoinToken, place: JoinPlace) -> bool:
    """Whether this machine is the token's node already; NavarchError where it is another."""
    from services.bus.nats.credentials_file import claims_of, is_of_node  # noqa: PLC0415

    if not is_of_node(token.credentials, BOOTSTRAP, token.pool, token.node):
        raise ConfigurationError(
            f"the token names {token.pool}/{token.node}, and its credentials another node: it was "
            "changed since it was made; copy it again, or make another"
        )
    try:
        own = place.credentials.read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError) as error:
        raise NavarchError(f"{place.credentials} cannot be read: run this as root") from error
    here, there = claims_of(own), claims_of(token.credentials)
    same = here.get("nats", {}).get("issuer_account") == there.get("nats", {}).get("issuer_account")
    if same and is_of_node(own, AGENT, token.pool, token.node):
        return True
    name = str(here.get("name", "")).removeprefix(f"{AGENT} ") or "another node"
    fleet = "this fleet" if same else "another fleet"
    raise NavarchError(
        f"this machine is {name} of {fleet} already: take it out there (`navarch leave`), then run "
        "`navarch-agent leave` here, and join again"
    )
