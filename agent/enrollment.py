"""Fetches a node's own credentials with its bootstrap credentials, and others before they expire.

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
from pathlib import Path
from typing import Final

import msgspec

from agent.settings import AgentConfig
from schemas import subjects
from schemas.agent_commands import EnrollAnswer, EnrollRequest
from schemas.headers import SERVICE_ERROR
from schemas.messages import LimitedDecoder, encode
from schemas.permissions import AGENT, BOOTSTRAP, POD
from services.bus.port import Bus
from services.primitives.atomic_files import write_secret
from services.primitives.errors import ConfigurationError, NavarchError, Unavailable

log = logging.getLogger(__name__)

ENROLL_SECONDS_MAX: Final = 300.0
"""Time limit of one attempt."""
ANSWER_SECONDS_MAX: Final = 10.0
AGAIN_SECONDS: Final = 1.0
ANSWER_DECODER: Final = LimitedDecoder(EnrollAnswer)

Connect = Callable[[Path], Awaitable[Bus]]
"""Connects with credentials in a file that permit only this request."""


async def enroll(config: AgentConfig, connect: Connect) -> str:
    """Fetch this node's credentials unless it has them; return a sentence about the result."""
    if done := _why_not_needed(config):
        return done
    file = Path(config.nats_bootstrap_file)
    await _fetch(config, connect, file)
    if not config.pod_token_file:
        _remove(file)
    return f"fetched this node's credentials into {config.nats_creds_file}"


async def rejoin(config: AgentConfig, connect: Connect) -> None:
    """Fetch credentials in place of expired ones; NavarchError if that is impossible."""
    if config.pod_token_file:
        # The key may be revoked, because the node had left; its pod may always have another.
        await _fetch(config, connect, Path(config.nats_bootstrap_file))
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
    """Whether this node has no credentials of its own yet, and can fetch them."""
    return bool(config.nats_bootstrap_file) and not _has_own(config)


def rejoin_file(config: AgentConfig) -> Path:
    """Beside the node's credentials."""
    own = Path(config.nats_creds_file)
    return own.with_name(f"{own.name}.rejoin")


def own_key(config: AgentConfig) -> tuple[str, str]:
    """Seed and public key in this node's credentials."""
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


async def _fetch(config: AgentConfig, connect: Connect, bootstrap: Path) -> None:
    """Fetch credentials for a new key."""
    kept = _key_file(config)
    seed, public = _key(kept)
    _keep(config, seed, await ask_with(config, connect, bootstrap, public))
    _remove(kept)


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)


def _key_file(config: AgentConfig) -> Path:
    own = Path(config.nats_creds_file)
    return own.with_name(f"{own.name}.key")


async def ask_with(config: AgentConfig, connect: Connect, file: Path, public: str) -> EnrollAnswer:
    """Ask over a connection of its own, until there is an answer or the time is over."""
    try:
        async with asyncio.timeout(ENROLL_SECONDS_MAX):
            bus = await connect(file)
            try:
                while True:
                    try:
                        with_token = bool(config.pod_token_file)
                        return await _ask(config, bus, public, with_token=with_token)
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
    config: AgentConfig, bus: Bus, public: str, *, with_token: bool = False
) -> EnrollAnswer:
    proof, subject = "", subjects.enroll(config.pool, config.node)
    if with_token:
        proof = _read(Path(config.pod_token_file)).strip()
        subject = subjects.enroll_pod(config.pool, config.node)
    request = encode(EnrollRequest(key=public, pod_token=proof))
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
