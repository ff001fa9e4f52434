"""Fetches a node's own credentials, renews them, and keeps its login on the bus valid.

In a pod the bootstrap credentials are of a whole pool; the pod's token proves which node it is.
The key pair is generated and stored before the request, so that a restarted agent repeats it with
the same key and gets the same reply. Once the node has its own credentials, the bootstrap
credentials are useless and removed. Beside them it keeps a token that permits only to request
others, for when they have expired.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from agent.settings import AgentConfig
from schemas import subjects
from schemas.agent_commands import EnrollAnswer, EnrollRequest
from schemas.headers import SERVICE_ERROR
from schemas.messages import LimitedDecoder, encode
from schemas.permissions import AGENT, BOOTSTRAP, POD
from services.bus.nats.credentials_file import life
from services.bus.port import Bus
from services.primitives.atomic_files import write_secret
from services.primitives.clock import Clock
from services.primitives.errors import ConfigurationError, LoginRefused, NavarchError, Unavailable

CONNECT_SECONDS_MAX: Final = 30.0
"""Of one attempt; then the credentials are looked at again."""
CHECK_SECONDS: Final = 2.0
RETRY_FIRST_SECONDS: Final = 15.0
RETRY_MAX_SECONDS: Final = 120.0
"""Half to one and a half of it: the pool-manager waits longer for agents that may connect again."""
RENEW_SECONDS_MIN: Final = 0.05
RENEW_FROM: Final = 1 / 3
"""Share of the credentials' life after which they are renewed, at the earliest."""
RENEW_SPAN: Final = 1 / 6
"""Share of their life over which a fleet's renewals are spread."""
log = logging.getLogger(__name__)

ENROLL_SECONDS_MAX: Final = 300.0
"""Time limit of one attempt."""
ANSWER_SECONDS_MAX: Final = 10.0
AGAIN_SECONDS: Final = 1.0
ANSWER_DECODER: Final = LimitedDecoder(EnrollAnswer)

Connect = Callable[[Path], Awaitable[Bus]]
"""Connects with credentials in a file that permit only this request."""


class NodeBus(Bus, Protocol):
    """A bus that reports whether the server refuses the login."""

    @property
    def login_refused(self) -> bool:
        """Return whether the server refuses the login at each attempt to reconnect."""


class JoinProof(NamedTuple):
    """Holds what a machine that joins sends along."""

    secret: str
    clock: Callable[[], datetime]


Open = Callable[[float], Awaitable[NodeBus]]
"""Connects with the node's own credentials, within so many seconds."""


def renewal_seconds(issued: float, expires: float, now: float, random: float) -> float:
    """Seconds until credentials are renewed. Pure.

    `random` (0 to 1) spreads the fleet. A clock that is wrong only moves the moment within the
    first half of their life, counted from now.
    """
    life = max(expires - issued, 0.0)
    wait = life * (RENEW_FROM + RENEW_SPAN * random)
    return min(max(issued + wait - now, 0.0), wait)


class BusLogin:
    """Holds this node's login at the bus.

    The server ends a connection whose credentials expire, and the client reconnects with the file's
    new ones. What the agent reports meanwhile waits in its spool.
    """

    def __init__(
        self,
        config: AgentConfig,
        clock: Clock,
        open_own: Open,
        open_with: Connect,
        random: Callable[[], float],
    ) -> None:
        """`open_with`: connects with credentials that permit only to request others."""
        self._config = config
        self._clock = clock
        self._open_own = open_own
        self._open_with = open_with
        self._random = random
        self._bus: NodeBus | None = None
        self._due = float("inf")
        """When the credentials are to be renewed, by the monotonic clock."""

    async def connect(self) -> Bus:
        """Connect, for as long as it takes."""
        retry, warned = RETRY_FIRST_SECONDS, ""
        while True:
            try:
                if is_needed(self._config):
                    log.info(await enroll(self._config, self._open_with))
                self._bus = await self._open_own(CONNECT_SECONDS_MAX)
            except ConfigurationError:
                raise
            except NavarchError as error:
                # The same once more is no news: a node may wait long until it is adopted.
                log.log(logging.INFO if str(error) == warned else logging.WARNING, "%s", error)
                warned = str(error)
                if isinstance(error, LoginRefused) and await self._rejoined():
                    continue
                if not isinstance(error, Unavailable) or isinstance(error, LoginRefused):
                    await self._clock.sleep(retry * (0.5 + self._random()))
                    retry = min(retry * 2, RETRY_MAX_SECONDS)
            else:
                self._plan_renewal()
                return self._bus

    async def run(self) -> None:
        """Renew the credentials in time, for ever."""
        retry = RETRY_FIRST_SECONDS
        while True:
            left = self._due - self._clock.monotonic()
            await self._clock.sleep(min(CHECK_SECONDS, max(left, RENEW_SECONDS_MIN)))
            bus = self._bus
            if bus is None or not (bus.connected or bus.login_refused):
                continue
            if bus.connected and self._clock.monotonic() < self._due:
                retry = RETRY_FIRST_SECONDS
                continue
            renewed = await (self._renewed(bus) if bus.connected else self._rejoined())
            if renewed:
                self._plan_renewal()
            if not (renewed and bus.connected):
                # The client has new credentials with its next attempt, if that was the cause.
                await self._clock.sleep(retry * (0.5 + self._random()))
                retry = min(retry * 2, RETRY_MAX_SECONDS)

    def _plan_renewal(self) -> None:
        issued, expires = life(self._config.nats_creds_file)
        now = self._clock.now().timestamp()
        seconds = renewal_seconds(issued, expires, now, self._random()) if expires else float("inf")
        self._due = self._clock.monotonic() + seconds

    async def _renewed(self, bus: Bus) -> bool:
        try:
            await renew(self._config, bus)
        except NavarchError as error:
            log.warning("the credentials are not renewed: %s", error)
            return False
        log.info("the credentials are renewed")
        return True

    async def _rejoined(self) -> bool:
        """Whether there are new credentials in place of those that the server refuses."""
        try:
            await rejoin(self._config, self._open_with)
        except NavarchError as error:
            log.warning("%s", error)
            return False
        log.info("the credentials that the server refused are replaced")
        return True


async def enroll(config: AgentConfig, connect: Connect) -> str:
    """Fetch this node's credentials unless it has them; return a sentence about the result."""
    if done := _why_not_needed(config):
        return done
    file = Path(config.nats_bootstrap_file)
    await fetch(config, connect, file)
    if not config.pod_token_file:
        _remove(file)
    return f"fetched this node's credentials into {config.nats_creds_file}"


async def rejoin(config: AgentConfig, connect: Connect) -> None:
    """Fetch credentials in place of expired ones; NavarchError if that is impossible."""
    if config.pod_token_file:
        # The key may be revoked, because the node had left; its pod may always have another.
        await fetch(config, connect, Path(config.nats_bootstrap_file))
        return
    file = rejoin_file(config)
    if not file.exists():
        raise NavarchError(
            f"the server refuses {config.nats_creds_file}, and there is no {file} with which to "
            "request others: replace the node"
        )
    seed, public = own_key(config)
    _keep(config, seed, await ask_with(config, connect, file, public))


async def renew(config: AgentConfig, bus: Bus) -> None:
    """Fetch credentials that are valid longer, over the agent's own connection."""
    seed, public = own_key(config)
    _keep(config, seed, await _ask(config, bus, public))


def is_needed(config: AgentConfig) -> bool:
    """Return whether this node has no credentials of its own yet, and can fetch them."""
    return bool(config.nats_bootstrap_file) and not _has_own(config)


def rejoin_file(config: AgentConfig) -> Path:
    """Return the file beside the node's credentials that asks it to enroll again."""
    own = Path(config.nats_creds_file)
    return own.with_name(f"{own.name}.rejoin")


def own_key(config: AgentConfig) -> tuple[str, str]:
    """Return the seed and public key in this node's credentials."""
    from services.bus.nats.credentials_file import seed_in  # noqa: PLC0415
    from services.bus.nats.nats_accounts import Key  # noqa: PLC0415

    if not (seed := seed_in(_read(Path(config.nats_creds_file)))):
        raise ConfigurationError("holds no credentials", file=config.nats_creds_file)
    key = Key(seed)
    return key.seed, key.public


def _why_not_needed(config: AgentConfig) -> str:
    """Why no request is needed; empty: it is; ConfigurationError if it is impossible."""
    # Imported here because it needs `navarch[credentials]`, which most agents do not install.
    from services.bus.nats.credentials_file import is_of_node  # noqa: PLC0415

    if not config.nats_bootstrap_file:
        return "nothing to fetch: NAVARCH_NATS_BOOTSTRAP_FILE is not set"
    if not config.nats_creds_file:
        problem = "is not set; name the file for this node's own credentials"
        raise ConfigurationError(problem, key="NAVARCH_NATS_CREDS_FILE")
    bootstrap = Path(config.nats_bootstrap_file)
    if _has_own(config):
        if not config.pod_token_file:
            bootstrap.unlink(missing_ok=True)
        return f"{config.nats_creds_file} holds this node's credentials already"
    role, node = (POD, "*") if config.pod_token_file else (BOOTSTRAP, config.node)
    if not is_of_node(_read(bootstrap), role, config.pool, node):
        raise ConfigurationError(
            f"{bootstrap} holds no {role} credentials of {config.pool}/{node}",
            key="NAVARCH_NATS_BOOTSTRAP_FILE",
        )
    return ""


def _has_own(config: AgentConfig) -> bool:
    from services.bus.nats.credentials_file import is_of_node  # noqa: PLC0415

    own = Path(config.nats_creds_file)
    return own.exists() and is_of_node(_read(own), AGENT, config.pool, config.node)


def _keep(config: AgentConfig, seed: str, answer: EnrollAnswer) -> None:
    """Write the node's credentials, and those with which it requests others."""
    from services.bus.nats.credentials_file import CREDENTIALS  # noqa: PLC0415

    own = Path(config.nats_creds_file)
    own.parent.mkdir(parents=True, exist_ok=True)
    if answer.authority and config.nats_tls_ca_file:
        _keep_authority(Path(config.nats_tls_ca_file), answer.authority)
    if answer.rejoin_token:
        text = CREDENTIALS.format(token=answer.rejoin_token, seed=seed)
        write_secret(rejoin_file(config), text)
    write_secret(own, CREDENTIALS.format(token=answer.token, seed=seed))


def _keep_authority(file: Path, text: str) -> None:
    """Replace the authorities of the bus; log where that is impossible or they cannot be used."""
    try:
        if file.exists() and _read(file) == text:
            return
        ssl.create_default_context(cadata=text)
        write_secret(file, text)
    except (OSError, ssl.SSLError, ValueError) as error:
        log.warning("the bus has other authorities, and %s keeps the old: %s", file, error)


async def fetch(
    config: AgentConfig, connect: Connect, bootstrap: Path, join: JoinProof | None = None
) -> None:
    """Request this node's credentials with the key of an earlier attempt, and keep them."""
    kept = key_file(config)
    seed, public = _key(kept)
    _keep(config, seed, await ask_with(config, connect, bootstrap, public, join))
    _remove(kept)


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)


def key_file(config: AgentConfig) -> Path:
    """Return the file with the key of a request that has not been answered."""
    own = Path(config.nats_creds_file)
    return own.with_name(f"{own.name}.key")


async def ask_with(
    config: AgentConfig, connect: Connect, file: Path, public: str, join: JoinProof | None = None
) -> EnrollAnswer:
    """Ask over a connection of its own, until there is an answer or the time is over.

    `join`: of a machine that joins with a token.
    """
    try:
        async with asyncio.timeout(ENROLL_SECONDS_MAX):
            bus = await connect(file)
            try:
                while True:
                    try:
                        with_token = bool(config.pod_token_file)
                        return await _ask(config, bus, public, with_token=with_token, join=join)
                    except Unavailable:
                        # The provisioner or its bus is restarting.
                        await asyncio.sleep(AGAIN_SECONDS)
            finally:
                await bus.close()
    except TimeoutError as error:
        raise NavarchError(
            f"no credentials within {ENROLL_SECONDS_MAX:g} s: the bus at {config.nats_url} does "
            f"not answer, or refuses {file}, which expires"
        ) from error


async def _ask(
    config: AgentConfig,
    bus: Bus,
    public: str,
    *,
    with_token: bool = False,
    join: JoinProof | None = None,
) -> EnrollAnswer:
    proof, subject = "", subjects.enroll(config.pool, config.node)
    if with_token:
        proof = _read(Path(config.pod_token_file)).strip()
        subject = subjects.enroll_pod(config.pool, config.node)
    request = encode(
        EnrollRequest(
            key=public,
            pod_token=proof,
            join_secret=join.secret if join else "",
            clock=join.clock() if join else None,
        )
    )
    reply = await bus.request(subject, request, timeout_seconds=ANSWER_SECONDS_MAX)
    try:
        answer = ANSWER_DECODER.decode(reply.data)
    except msgspec.DecodeError as error:
        raise NavarchError(f"the provisioner's answer cannot be read: {error}") from error
    why = answer.refused or reply.headers.get(SERVICE_ERROR, "")
    if why or not answer.token:
        raise NavarchError(f"no credentials for {config.node}: {why or 'an empty answer'}")
    return answer


def _key(file: Path) -> tuple[str, str]:
    """Seed and public key of an earlier attempt, else new ones, stored before use."""
    from services.bus.nats.nats_accounts import Key, new_seed  # noqa: PLC0415

    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_secret(file, new_seed("user"))
    key = Key(_read(file).strip())
    return key.seed, key.public


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot be read: {error}", file=str(file)) from error
