"""`navarch-agent enroll`: exchanges a new node's bootstrap credentials for its own, once.

The key pair is generated and stored before the request, so that a restarted agent repeats it with
the same key and gets the same reply. Once the node has its own credentials, the bootstrap
credentials are useless and removed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from agent.settings import AgentConfig
from schemas import subjects
from schemas.agent_commands import EnrollAnswer, EnrollRequest
from schemas.headers import SERVICE_ERROR
from schemas.messages import LimitedDecoder, encode
from schemas.permissions import AGENT, BOOTSTRAP
from services.bus.port import Bus
from services.primitives.atomic_files import write_secret
from services.primitives.errors import ConfigurationError, NavarchError, Unavailable

ENROLL_SECONDS_MAX: Final = 300.0
"""Time limit of one attempt; systemd starts the next."""
ANSWER_SECONDS_MAX: Final = 10.0
AGAIN_SECONDS: Final = 1.0
ANSWER_DECODER: Final = LimitedDecoder(EnrollAnswer)

Connect = Callable[[Path], Awaitable[Bus]]
"""Connects with the bootstrap credentials in a file."""


async def enroll(config: AgentConfig, connect: Connect) -> str:
    """Fetch this node's credentials unless it has them; return a sentence about the result."""
    if done := _why_not_needed(config):
        return done
    seed, public = _key(_key_file(config))
    try:
        async with asyncio.timeout(ENROLL_SECONDS_MAX):
            token = await _ask(config, connect, public)
    except TimeoutError as error:
        raise NavarchError(
            f"no credentials within {ENROLL_SECONDS_MAX:g} s: the bus at {config.nats_url} does "
            "not answer, or refuses expired bootstrap credentials"
        ) from error
    return _keep(config, seed, token)


def _why_not_needed(config: AgentConfig) -> str:
    """Why no request is needed; empty: it is; ConfigurationError if it is impossible."""
    # Imported here because it needs `navarch[credentials]`, which most agents do not install.
    from services.bus.nats.credentials_file import is_of_node  # noqa: PLC0415

    if not config.nats_bootstrap_file:
        return "nothing to fetch: NAVARCH_NATS_BOOTSTRAP_FILE is not set"
    if not config.nats_creds_file:
        problem = "is not set; name the file for this node's own credentials"
        raise ConfigurationError(problem, key="NAVARCH_NATS_CREDS_FILE")
    bootstrap, own = Path(config.nats_bootstrap_file), Path(config.nats_creds_file)
    if own.exists() and is_of_node(_read(own), AGENT, config.pool, config.node):
        bootstrap.unlink(missing_ok=True)
        return f"{own} holds this node's credentials already"
    if not is_of_node(_read(bootstrap), BOOTSTRAP, config.pool, config.node):
        raise ConfigurationError(
            f"{bootstrap} holds no bootstrap credentials of {config.pool}/{config.node}",
            key="NAVARCH_NATS_BOOTSTRAP_FILE",
        )
    return ""


def _keep(config: AgentConfig, seed: str, token: str) -> str:
    """Write the node's credentials; remove the key and the bootstrap credentials."""
    from services.bus.nats.credentials_file import CREDENTIALS  # noqa: PLC0415

    own = Path(config.nats_creds_file)
    own.parent.mkdir(parents=True, exist_ok=True)
    write_secret(own, CREDENTIALS.format(token=token, seed=seed))
    _key_file(config).unlink(missing_ok=True)
    Path(config.nats_bootstrap_file).unlink(missing_ok=True)
    return f"fetched this node's credentials into {own}"


def _key_file(config: AgentConfig) -> Path:
    own = Path(config.nats_creds_file)
    return own.with_name(f"{own.name}.key")


async def _ask(config: AgentConfig, connect: Connect, public: str) -> str:
    bus = await connect(Path(config.nats_bootstrap_file))
    try:
        subject = subjects.enroll(config.pool, config.node)
        while True:
            try:
                reply = await bus.request(
                    subject, encode(EnrollRequest(key=public)), timeout_seconds=ANSWER_SECONDS_MAX
                )
                answer = ANSWER_DECODER.decode(reply.data)
            except Unavailable:
                # The provisioner or its bus is restarting.
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            except msgspec.DecodeError as error:
                raise NavarchError(f"the provisioner's answer cannot be read: {error}") from error
            why = answer.refused or reply.headers.get(SERVICE_ERROR, "")
            if why or not answer.token:
                raise NavarchError(f"no credentials for {config.node}: {why or 'an empty answer'}")
            return answer.token
    finally:
        await bus.close()


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
