"""Issues each node's agent its own credentials, and renews them.

The node creates a key pair and requests, with its bootstrap credentials, a token for the public
key; the seed is never sent. The first key is recorded in the instance's record before the reply.
The same key gets another token as long as the instance exists: a reply may be lost, and tokens
expire. Another key is refused. The NATS server ensures that a node requests only its own token,
before the bootstrap credentials expire.
"""

import hashlib
import logging
from datetime import datetime, timedelta
from pathlib import Path

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
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

ALIVE = ("intended", "running")
ID_CHARS = 8


class EnrollmentEndpoint:
    """Answers enrollment requests."""

    def __init__(
        self, bus: Bus, clock: Clock, store: InstanceStore, agent: AgentSettings, nats: NatsSettings
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._store = store
        self._within = timedelta(seconds=agent.enroll_within)
        self._valid = timedelta(seconds=agent.credentials_valid)
        self._rejoin = timedelta(seconds=agent.rejoin_within)
        self._signing_file = nats.agent_signing_file
        self._authority_file = nats.tls_ca_file.replace(SERVICE, "provisioner")

    async def answer(self, data: bytes, headers: Headers) -> bytes:
        """Answer one node, named by the subject that it may use."""
        found = subjects.parse_enroll(headers.get(SUBJECT, ""))
        if found is None:
            raise ValueError(f"send the request to {subjects.enroll('POOL', 'NODE')}")
        pool, node = found
        request = msgspec.json.decode(data, type=EnrollRequest)
        record: InstanceRecord | None = None
        refused = "the fleet issues no credentials (nats.agent_signing_file is not set)"
        if self._signing_file:
            record, refused = await self._record_key(pool, node, request.key)
        if record is None:
            log.warning("credentials refused", extra={"node": node, "reason": refused})
            await self._publish_refused(pool, node, refused)
            return encode(EnrollAnswer(refused=refused))
        now = self._clock.now()
        keys = read_agent_keys(Path(self._signing_file))
        answer = EnrollAnswer(
            token=agent_token(keys, pool, node, request.key, now, now + self._valid),
            rejoin_token=rejoin_token(keys, pool, node, request.key, now, now + self._rejoin),
            authority=read_authority(self._authority_file),
        )
        if record.intended_at < now - self._within:
            return encode(answer)  # it renews them
        await publish_event(
            self._bus,
            CredentialsIssued(
                id=f"credentials-{node}-{request.key[1:9]}",
                time=now,
                cause=record.saga,
                pool=pool,
                node=node,
                key=request.key,
            ),
        )
        return encode(answer)

    async def _record_key(
        self, pool: str, node: str, key: str
    ) -> tuple[InstanceRecord | None, str]:
        """Record the key; return the record, or None and why the key is refused."""
        now, refused = self._clock.now(), ""

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            nonlocal refused
            refused = why_refused(record, key, now - self._within)
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


def read_authority(file: str) -> str:
    """Return the certificate authorities of the bus; empty where the machine's own are used."""
    return Path(file).read_text(encoding="ascii") if file else ""


def refusal_id(node: str, reason: str, now: datetime) -> str:
    """Return one event ID for each reason and day, so that repetitions are published once. Pure."""
    about = hashlib.sha256(reason.encode()).hexdigest()[:ID_CHARS]
    return f"credentials-refused-{node}-{about}-{now:%Y-%m-%d}"


def why_refused(record: InstanceRecord | None, key: str, oldest: datetime) -> str:
    """Return why a key gets no credentials for a node; empty if it does. Pure."""
    if record is None or record.state not in ALIVE:
        return "the instance no longer exists"
    if record.disconnected_at is not None:
        return f"it is disconnected; to readmit it: navarch readmit {record.instance}"
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
