"""Issues each node's agent its own credentials, and renews them.

The node creates a key pair and requests, with its bootstrap credentials, a token for the public
key; the seed is never sent. The first key is recorded in the instance's record before the reply.
The same key gets another token as long as the instance exists: a reply may be lost, and tokens
expire. Another key is refused. The NATS server ensures that a node requests only its own token,
before the bootstrap credentials expire.

Agents in pods share the credentials with which they request (`enroll-pod`). Each proves on which
node it runs by its pod's token, about which the provider asks its cluster. Who has that token is on
the node, so another key takes the place of the first.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from schemas import subjects
from schemas.agent_commands import EnrollAnswer, EnrollRequest
from schemas.headers import SUBJECT
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_events import CredentialsIssued, CredentialsRefused
from schemas.node_records import node_key
from schemas.settings import AgentSettings, NatsSettings
from services.bus.nats.connection_options import SERVICE
from services.bus.nats.nats_accounts import agent_token, read_agent_keys, rejoin_token
from services.bus.port import Bus, Headers
from services.primitives.clock import Clock
from services.primitives.errors import Unavailable
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider_errors import ProviderError
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

NO_KEYS: Final = "the fleet issues no credentials (nats.agent_signing_file is not set)"
NOT_ADOPTED: Final = "it is not adopted yet; its agent requests them again"
NodeOfPod = Callable[[str, str], Awaitable[str]]
"""Provider and token of a pod -> the instance on which the pod runs; ProviderError."""
UseToken = Callable[[str, str, EnrollRequest], Awaitable[str]]
"""Pool, node and request of a machine that joins -> why it may not; empty: it is recorded."""
ALIVE = ("intended", "running")
ID_CHARS = 8


class EnrollmentEndpoint:
    """Answers enrollment requests."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: InstanceStore,
        agent: AgentSettings,
        nats: NatsSettings,
        node_of_pod: NodeOfPod,
        use_token: UseToken,
    ) -> None:
        """`use_token`: records a machine that joins, or says why it may not."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._node_of_pod = node_of_pod
        self._use_token = use_token
        self._within = timedelta(seconds=agent.enroll_within)
        self._valid = timedelta(seconds=agent.credentials_valid)
        self._rejoin = timedelta(seconds=agent.rejoin_within)
        self._signing_file = nats.agent_signing_file
        self._authority_file = nats.tls_ca_file.replace(SERVICE, "provisioner")

    async def answer(self, data: bytes, headers: Headers) -> bytes:
        """Answer one node, named by the subject that it may use."""
        pool, node, request = read_request(data, headers)
        record: InstanceRecord | None = None
        refused, joins = NO_KEYS, bool(request.join_secret)
        if self._signing_file:
            refused = await self._use_token(pool, node, request) if joins else ""
        if not refused:
            record, refused = await self._record_key(pool, node, request.key, is_proven=joins)
        if record is None:
            await self._publish_refused(pool, node, refused)
            return _refusal(node, refused)
        return await self._issue(pool, node, request.key, record)

    async def answer_pod(self, data: bytes, headers: Headers) -> bytes:
        """Answer an agent in a pod: the subject names a node, and the token proves it."""
        pool, node, request = read_request(data, headers)
        record = await self._store.get(node_key(pool, node))
        if record is None:
            # Neither published nor warned of: every node that joins requests before it is adopted.
            log.debug("credentials before adoption", extra={"node": node})
            return encode(EnrollAnswer(refused=NOT_ADOPTED))
        refused = "" if self._signing_file else NO_KEYS
        refused = refused or await self._why_not_proven(record, request.pod_token)
        if not refused:
            record, refused = await self._record_key(pool, node, request.key, is_proven=True)
        if record is None or refused:
            await self._publish_refused(pool, node, refused)
            return _refusal(node, refused)
        return await self._issue(pool, node, request.key, record)

    async def _why_not_proven(self, record: InstanceRecord, token: str) -> str:
        """Why the token does not prove that it is from this node; empty if it does."""
        try:
            node = await self._node_of_pod(record.provider, token)
        except ProviderError as error:
            if error.kind != "INVALID":
                raise Unavailable(str(error)) from error
            return str(error)
        return "" if node == record.instance else f"the pod of the token runs on node {node}"

    async def _issue(self, pool: str, node: str, key: str, record: InstanceRecord) -> bytes:
        now = self._clock.now()
        keys = read_agent_keys(Path(self._signing_file))
        answer = EnrollAnswer(
            token=agent_token(keys, pool, node, key, now, now + self._valid),
            rejoin_token=rejoin_token(keys, pool, node, key, now, now + self._rejoin),
            authority=read_authority(self._authority_file),
        )
        if record.intended_at < now - self._within:
            return encode(answer)  # it renews them
        await publish_event(
            self._bus,
            CredentialsIssued(
                id=f"credentials-{node}-{key[1:9]}",
                time=now,
                cause=record.saga,
                pool=pool,
                node=node,
                key=key,
            ),
        )
        return encode(answer)

    async def _record_key(
        self, pool: str, node: str, key: str, *, is_proven: bool = False
    ) -> tuple[InstanceRecord | None, str]:
        """Record the key; return the record, or None and why the key is refused."""
        now, refused = self._clock.now(), ""

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            nonlocal refused
            refused = why_refused(record, key, now - self._within, is_proven=is_proven)
            return replace(record, agent_key=key) if record is not None and not refused else None

        record = await self._store.change(node_key(pool, node), decide)
        return (None, refused) if refused else (record, "")

    async def _publish_refused(self, pool: str, node: str, reason: str) -> None:
        now = self._clock.now()
        await publish_event(
            self._bus,
            CredentialsRefused(
                id=refusal_id(node, reason, now),
                time=now,
                pool=pool,
                node=node,
                reason=reason,
            ),
        )


def read_request(data: bytes, headers: Headers) -> tuple[str, str, EnrollRequest]:
    """Return pool, node and request; ValueError where the subject names none."""
    found = subjects.parse_enroll(headers.get(SUBJECT, ""))
    if found is None:
        raise ValueError(f"send the request to {subjects.enroll('POOL', 'NODE')}")
    return *found, msgspec.json.decode(data, type=EnrollRequest)


def _refusal(node: str, reason: str) -> bytes:
    log.warning("credentials refused", extra={"node": node, "reason": reason})
    return encode(EnrollAnswer(refused=reason))


def read_authority(file: str) -> str:
    """Return the certificate authorities of the bus; empty where the machine's own are used."""
    return Path(file).read_text(encoding="ascii") if file else ""


def refusal_id(node: str, reason: str, now: datetime) -> str:
    """Return one event ID for each reason and day, so that repetitions are published once. Pure."""
    about = hashlib.sha256(reason.encode()).hexdigest()[:ID_CHARS]
    return f"credentials-refused-{node}-{about}-{now:%Y-%m-%d}"


def why_refused(
    record: InstanceRecord | None, key: str, oldest: datetime, *, is_proven: bool = False
) -> str:
    """Return why a key gets no credentials for a node; empty if it does. Pure.

    `is_proven`: the request is from the node.
    """
    if record is None or record.state not in ALIVE:
        return "the instance no longer exists"
    if record.disconnected_at is not None:
        return f"it is disconnected; to readmit it: navarch readmit {record.instance}"
    if is_proven:
        return ""
    if record.agent_key and record.agent_key != key:
        return (
            "its credentials were issued already, for another key: unless its own agent has it, "
            "replace the node"
        )
    # An adopted instance's key was lost with its record; the server lets only credentials request
    # others that were issued for that key, or in the first hour.
    adopted = record.saga == instance_decisions.ADOPTED
    if not record.agent_key and record.intended_at < oldest and not adopted:
        return "the time to fetch them is over (agent.enroll_within); replace the node"
    return ""
