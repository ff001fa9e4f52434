"""Makes, shows and revokes the tokens with which machines join pools, and takes machines out.

A token is recorded by the digest of its secret. The machine that uses it first is recorded with its
key, before its instance and its node are: a request that is repeated by that machine goes on where
the one before ended, and every other machine is refused.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from schemas import subjects
from schemas.agent_commands import EnrollRequest
from schemas.enums import FORGOTTEN, NOT_LISTED
from schemas.instance_records import InstanceRecord
from schemas.join_tokens import (
    JOIN,
    JOIN_REVOKE,
    JOIN_TOKENS,
    LEAVE,
    ForgetAnswer,
    IssuedToken,
    JoinAnswer,
    JoinRecord,
    JoinRequest,
    JoinToken,
    NodeOfPool,
    digest_of,
    encode_token,
    fingerprint_of,
)
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, node_key
from schemas.operations import FORGET, PLAN_FORGET
from schemas.pool_records import PoolRecord, pool_key
from schemas.stream_specs import DAY_SECONDS
from schemas.topology import LEASES, NODES, POOLS
from services.bus.bucket_mirror import readable, readable_record
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.bus.record_bucket import RecordBucket
from services.primitives.clock import Clock
from services.primitives.errors import NavarchError
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.provisioner.instances.instance_decisions import record_from_tags
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.joins import join_decisions
from services.provisioner.provider_client.provider import Instance
from services.provisioner.removal.orphans import Orphans
from services.provisioner.removal.sweep_actions import LEFT

log = logging.getLogger(__name__)

KEY: Final = "provisioner.join"
"""Of the records, in LEASES."""
SECRET_BYTES: Final = 24
KEPT_SECONDS: Final = DAY_SECONDS
"""How long after its end a token is recorded, so that a late machine learns why it is refused."""

_pool: Final = decoder(PoolRecord)
_record: Final = decoder(JoinRecord)
_node: Final = decoder(NodeRecord)


class JoinEndpoints:
    """Answers operators about tokens, and records the machines that use them."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: InstanceStore,
        orphans: Orphans,
        templates: BootstrapTemplates,
    ) -> None:
        """`orphans`: has the pool-manager record and retire nodes that others made."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._orphans = orphans
        self._templates = templates
        self._records = RecordBucket(bus, LEASES, JoinRecord, self._ttl_seconds)

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoints by their subjects."""
        return {
            subjects.order_wildcard(JOIN): self._make,
            subjects.order_wildcard(JOIN_REVOKE): self._revoke,
            subjects.order_wildcard(LEAVE): self._leave,
            subjects.order_wildcard(FORGET.name): self._forget,
            subjects.query(PLAN_FORGET.name): self._plan_forget,
            subjects.query(JOIN_TOKENS): self._show,
        }

    async def use(self, pool: str, node: str, request: EnrollRequest) -> str:
        """Record the machine that has a node's token; return why it may not join, or nothing."""
        key, now = node_key(pool, node), self._clock.now()
        found = await self._pool(pool)
        if found is None or (refused := join_decisions.why_no_pool(found, pool)):
            return join_decisions.why_no_pool(found, pool)
        refused = ""

        def used(token: JoinRecord | None) -> JoinRecord | None:
            nonlocal refused
            refused = join_decisions.why_not_joined(token, request, now)
            if refused or token is None:
                return None
            return join_decisions.used_by(token, request.key, now)

        token = (await self._records.change(_key(pool, node), used)).record
        if refused or token is None:
            return refused
        if found.spec.nodes == "enrolled":  # others are adopted as soon as they are listed
            machine = self._machine(found, node, token.digest)
            await self._orphans.adopt_joined(
                key, found.spec.provider, replace(machine, created_at=token.used_at)
            )
        log.info("machine joined", extra={"pool": pool, "node": node, "token_by": token.by})
        return ""

    async def _make(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=JoinRequest)
        by, found = requester(headers, asked.by), await self._pool(asked.pool)
        if refused := join_decisions.why_no_pool(found, asked.pool):
            raise ValueError(refused)
        assert found is not None
        made = [await self._token(found, node, asked, by) for node in dict.fromkeys(asked.nodes)]
        for _, record in made:
            await self._replace(record)
        first = made[0][0]
        log.info("join tokens made", extra={"pool": asked.pool, "tokens": len(made), "by": by})
        answer = JoinAnswer(
            tokens=tuple(
                IssuedToken(node=token.node, token=encode_token(token)) for token, _ in made
            ),
            url=first.url,
            fingerprint=fingerprint_of(first.authority),
            expires_at=first.expires_at,
        )
        return encode(answer)

    async def _token(
        self, pool: PoolRecord, node: str, asked: JoinRequest, by: str
    ) -> tuple[JoinToken, JoinRecord]:
        """Return a token and its record; ValueError where none may be made."""
        known = await self._store.get(node_key(pool.name, node))
        if refused := join_decisions.why_not_made(asked, node, known, pool):
            raise ValueError(refused)
        secret, now = secrets.token_urlsafe(SECRET_BYTES), self._clock.now()
        machine = self._machine(pool, node, digest_of(secret))
        record = record_from_tags(pool.spec.provider, replace(machine, token=secret), now)
        record = replace(record, launch=replace(record.launch, gpu_count=pool.spec.gpu_count))
        token = await asyncio.to_thread(self._filled, record, secret, asked.valid_seconds)
        return token, JoinRecord(
            pool=pool.name,
            node=node,
            digest=digest_of(secret),
            made_at=now,
            expires_at=token.expires_at,
            by=by,
            again=asked.again,
        )

    async def _replace(self, record: JoinRecord) -> None:
        """Record a token in place of an earlier one of its node."""
        await self._records.change(_key(record.pool, record.node), lambda _: record)

    def _filled(self, record: InstanceRecord, secret: str, valid_seconds: float) -> JoinToken:
        """Return a token with what the files of the bus have now."""
        url, authority = self._templates.bus_url(record), self._templates.authority()
        if shown := join_decisions.why_not_private(url, encrypted=bool(authority)):
            raise ValueError(shown)
        credentials = self._templates.credentials(record, valid_seconds)
        if not credentials:
            raise ValueError(
                "the bus lets every client in, so a token would protect nothing: serve it with "
                "credentials (without --open; nats.agent_signing_file)"
            )
        return JoinToken(
            url=url,
            pool=record.pool,
            node=record.instance,
            secret=secret,
            credentials=credentials,
            authority=authority,
            issued_at=record.intended_at,
            expires_at=record.intended_at + timedelta(seconds=valid_seconds),
            settings=self._templates.agent_settings(record),
        )

    async def _revoke(self, data: bytes, headers: Headers) -> bytes:
        """Remove the token of a node, whether it was used or not; the node stays."""
        asked = msgspec.json.decode(data, type=NodeOfPool)
        key = _key(asked.pool, asked.node)
        before = await self._records.read(key)
        if before.record is None:
            raise ValueError(f"{asked.node} of pool {asked.pool} has no token: navarch join --list")
        await self._bus.delete(LEASES, key)
        log.info("join token revoked", extra={"node": asked.node, "by": requester(headers)})
        return encode(before.record)

    async def _leave(self, data: bytes, headers: Headers) -> bytes:
        """Take a machine that joined out of its pool: its credentials are refused from then on."""
        asked = msgspec.json.decode(data, type=NodeOfPool)
        _, record = await self._leaving(asked)
        await self._take_out(asked, requester(headers, asked.by), NOT_LISTED)
        return encode(record)

    async def _forget(self, data: bytes, headers: Headers) -> bytes:
        """Take a machine out of its pool so that no sweep adopts it again."""
        asked = msgspec.json.decode(data, type=NodeOfPool)
        pool, record = await self._leaving(asked)
        answer = _answer(pool, record)
        if record.state == "running":
            mark = FORGOTTEN if answer.is_listed else NOT_LISTED
            await self._take_out(asked, requester(headers, asked.by), mark)
        return encode(answer)

    async def _plan_forget(self, data: bytes, _: Headers) -> bytes:
        """Say whether a machine would be forgotten."""
        return encode(_answer(*await self._leaving(msgspec.json.decode(data, type=NodeOfPool))))

    async def _leaving(self, asked: NodeOfPool) -> tuple[PoolRecord | None, InstanceRecord]:
        """Return a node's pool and instance; ValueError where the node does not leave as it is."""
        key, pool = node_key(asked.pool, asked.node), await self._pool(asked.pool)
        record = await self._store.get(key)
        if record is not None and join_decisions.is_forgotten(record):
            return pool, record
        node = readable_record(await self._bus.get(NODES, key), _node)
        saga = node.saga if node is not None else ""
        if refused := join_decisions.why_stays(pool, asked, record, saga):
            raise ValueError(refused)
        assert record is not None
        return pool, record

    async def _take_out(self, asked: NodeOfPool, by: str, mark: str) -> None:
        key = node_key(asked.pool, asked.node)
        await self._bus.delete(LEASES, _key(asked.pool, asked.node))
        try:
            why = f"{LEFT}: {by or 'an operator'} took it out"
            await self._orphans.retire_joined(key, why, mark)
        except NavarchError:
            # What is refused must not be carried out by a later sweep.
            await self._orphans.keep_joined(key)
            raise
        log.info("machine left", extra={"pool": asked.pool, "node": asked.node, "by": by})

    async def _show(self, _: bytes, __: Headers) -> bytes:
        """Return the tokens that hold, and those that were used or ended lately."""
        entries = await self._bus.entries(LEASES, f"{KEY}.>")
        return msgspec.json.encode([record for _, record in readable(entries, _record)])

    async def _pool(self, name: str) -> PoolRecord | None:
        return readable_record(await self._bus.get(POOLS, pool_key(name)), _pool)

    def _machine(self, pool: PoolRecord, node: str, digest: str) -> Instance:
        return Instance(
            name=node,
            provider_id=f"enrolled://{pool.name}/{node}/{digest[:12]}",
            status="running",
            pool=pool.name,
            instance_type=pool.spec.instance_type,
            region=pool.spec.region,
            lasting=True,
        )

    def _ttl_seconds(self, record: JoinRecord) -> int:
        left = (record.expires_at - self._clock.now()).total_seconds()
        return int(max(left, 0.0)) + KEPT_SECONDS


def _key(pool: str, node: str) -> str:
    return f"{KEY}.{pool}.{node}"


def _answer(pool: PoolRecord | None, record: InstanceRecord) -> ForgetAnswer:
    return ForgetAnswer(
        pool=record.pool,
        node=record.instance,
        provider=record.provider,
        is_listed=pool is not None and pool.spec.nodes == "adopted",
        has_agent=bool(record.agent_key),
    )
