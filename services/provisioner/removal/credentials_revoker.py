"""Has the server refuse credentials of terminated nodes, and of those that flood the bus.

The list of revoked keys is part of the account's token in the server. Each replica compares it with
INSTANCES: at each termination, and regularly, so that nothing is missed while no provisioner runs.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from schemas import subjects
from schemas.fleet_queries import CurrentFailure
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_disconnections import DisconnectAnswer, DisconnectRequest, ReadmitRequest
from schemas.node_events import BusAccess
from schemas.node_records import node_key
from schemas.settings import NatsSettings
from schemas.topology import INSTANCES
from services.bus.nats.account_updates import (
    Requests,
    read_account,
    replace_accounts,
    revoker_options,
)
from services.bus.nats.credentials_file import claims_of_token
from services.bus.nats.nats_accounts import (
    REVOKER,
    AgentKeys,
    read_agent_keys,
    with_revocations,
)
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.primitives.clock import Clock
from services.primitives.errors import NavarchError, SetupError
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.removal.connection_crowds import (
    REFUSED_SECONDS,
    crowd_failure,
    crowds,
)
from services.runtime.event_publisher import publish_event
from services.runtime.failure_register import FailureRegister

DISCONNECTED_MAX: Final = 5
"""At once: a defect of all agents, or of what requests this, silences no more nodes."""
REASON_CHARS_MAX: Final = 500
DISCONNECT: Final = "disconnect-node"
READMIT: Final = "readmit"
log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 10.0
"""Between two comparisons with the server's list, which a reload may have emptied."""
GATHER_SECONDS: Final = 0.5
"""Terminations within this time are one change of the list."""
MARGIN_SECONDS: Final = 3_600.0
"""Added to the credentials' life, for clocks that differ."""
MISTAKEN_REASON: Final = (
    "its key is on nats-server's list of revoked keys, and no record says why: INSTANCES may have "
    "been rolled back"
)
REVOCATIONS_MAX: Final = 10_000
"""What fits the largest message of the server, with the account's permissions."""

_decoder = decoder(InstanceRecord)


def why_not_disconnected(record: InstanceRecord | None, others: int, *, can_revoke: bool) -> str:
    """Return why a node stays connected; empty: it is to be disconnected. Pure.

    `others`: how many nodes are disconnected already.

    A disconnected node's key is revoked, and gets no credentials. Its record says so first: so the
    silence that follows is known to be ours, and the node is not replaced for it.
    """
    if not can_revoke:
        return "the provisioner cannot revoke credentials (nats.revocation_file is not set)"
    if record is None or record.state != "running":
        return "the provisioner has no running instance of that name"
    if not record.agent_key:
        return "its credentials were not issued by the provisioner"
    if others >= DISCONNECTED_MAX:
        return f"{others} other nodes are disconnected, the most at once: readmit or replace them"
    return ""


def is_disconnected(record: InstanceRecord) -> bool:
    """Return whether an instance runs on whose credentials are refused. Pure."""
    return record.disconnected_at is not None and record.state != "terminated"


def readmitted(record: InstanceRecord, now: datetime) -> InstanceRecord:
    """The record of a node whose credentials are accepted again. Pure."""
    if record.state == "terminated":
        raise ValueError(f"the instance of {record.instance} is terminated")
    if record.disconnected_at is None:
        raise ValueError(
            f"{record.instance} is not disconnected: `navarch status` names the nodes that are"
        )
    return replace(record, disconnected_at=None, disconnected_reason="", readmitted_at=now)


def disconnected_failure(record: InstanceRecord) -> CurrentFailure:
    """Return what is reported of a disconnected node, for as long as it is one."""
    node = record.instance
    return CurrentFailure(
        failure="node-disconnected",
        about=f"node {node}",
        reason=(
            f"{record.disconnected_reason}; its credentials are refused since "
            f"{record.disconnected_at:%Y-%m-%d %H:%M:%S} UTC. Its work goes on, its faults are not "
            "seen, and it is not replaced for its silence"
        ),
        remedy=(
            f"find out what sent them (`navarch events --node {node}`, the agent's log); then "
            f"`navarch readmit {node}`, or `navarch replace {node}` where its credentials may have "
            "been copied"
        ),
    )


class NodeDisconnector:
    """Answers both requests."""

    def __init__(self, bus: Bus, clock: Clock, store: InstanceStore, *, can_revoke: bool) -> None:
        self._bus = bus
        self._clock = clock
        self._store = store
        self._can_revoke = can_revoke

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Return each subject with its endpoint."""
        return {
            subjects.query(DISCONNECT): self._disconnect,
            subjects.order_wildcard(READMIT): self._readmit,
        }

    async def _disconnect(self, data: bytes, _: Headers) -> bytes:
        return encode(await self.disconnect(msgspec.json.decode(data, type=DisconnectRequest)))

    async def disconnect(self, request: DisconnectRequest) -> DisconnectAnswer:
        """Record that a node's credentials are refused from now on, or say why they are not."""
        key, now, refused = node_key(request.pool, request.node), self._clock.now(), ""
        known = await self._store.all() if self._can_revoke else {}
        others = sum(each != key and is_disconnected(record) for each, record in known.items())

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            nonlocal refused
            refused = ""
            if record is not None and record.disconnected_at is not None:
                return record
            refused = why_not_disconnected(record, others, can_revoke=self._can_revoke)
            if refused or record is None:
                return None
            reason = request.reason[:REASON_CHARS_MAX]
            return replace(record, disconnected_at=now, disconnected_reason=reason)

        record = await self._store.change(key, decide)
        if refused or record is None or record.disconnected_at is None:
            return DisconnectAnswer(disconnected=False, reason=refused)
        log.warning("node disconnected", extra={"node": request.node, "reason": request.reason})
        await self._publish(record, record.disconnected_at)
        return DisconnectAnswer(disconnected=True)

    async def _publish(self, record: InstanceRecord, at: datetime, by: str = "") -> BusAccess:
        refused = record.disconnected_at is not None
        what = "disconnected" if refused else "readmitted"
        event = BusAccess(
            id=f"{what}-{record.instance}-{at.isoformat()}",
            time=at,
            pool=record.pool,
            node=record.instance,
            refused=refused,
            reason=record.disconnected_reason,
            by=by,
        )
        await publish_event(self._bus, event)
        return event

    async def _readmit(self, data: bytes, headers: Headers) -> bytes:
        request = msgspec.json.decode(data, type=ReadmitRequest)
        now = self._clock.now()

        def decide(record: InstanceRecord | None) -> InstanceRecord | None:
            if record is None:
                raise ValueError(f"the provisioner has no instance {request.node}")
            return readmitted(record, now)

        record = await self._store.change(node_key(request.pool, request.node), decide)
        assert record is not None
        return encode(await self._publish(record, now, requester(headers, request.by)))


def revoked_until(record: InstanceRecord, valid_seconds: float) -> float:
    """Return when the last credentials of a node that must not connect end; 0: it may. Pure."""
    ended = record.terminated_at if record.state == "terminated" else record.disconnected_at
    if not record.agent_key or ended is None:
        return 0.0
    return ended.timestamp() + valid_seconds + MARGIN_SECONDS


def merge(
    current: Mapping[str, int],
    revoked: Mapping[str, float],
    now: float,
    readmitted: Collection[str] = (),
) -> dict[str, int]:
    """Return the list of revoked keys, each with its end, without those that have ended. Pure."""
    found = {key: until for key, until in current.items() if key not in readmitted}
    found |= {key: int(until) for key, until in revoked.items()}
    alive = sorted(((until, key) for key, until in found.items() if until > now), reverse=True)
    return {key: until for until, key in alive[:REVOCATIONS_MAX]}


def _contents(files: Collection[Path]) -> list[bytes]:
    return [each.read_bytes() if each.exists() else b"" for each in files]


class Revoker:
    """Revokes the credentials of nodes that are terminated, or disconnected until readmitted."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        nats: NatsSettings,
        credentials_valid: float,
        failures: FailureRegister,
    ) -> None:
        self._bus = bus
        self._store = InstanceStore(bus)
        self._clock = clock
        self._nats = nats
        self._valid_seconds = credentials_valid
        self._failures = failures
        self._disconnector = NodeDisconnector(bus, clock, self._store, can_revoke=True)
        self._revoked: dict[str, float] = {}
        """Public key -> when its last credentials have expired."""
        self._readmitted: set[str] = set()
        """Public keys that an operator had accepted again."""
        self._running: dict[str, str] = {}
        """Public key -> key of the record of an instance that may connect."""
        self._disconnected: dict[str, InstanceRecord] = {}
        """Key of the record -> the node's instance."""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Revoke for ever; do nothing on a bus without accounts."""
        if not self._nats.revocation_file:
            await asyncio.Event().wait()
        file = Path(self._nats.revocation_file)
        watching = asyncio.create_task(self._watch())
        try:
            await self._revoke_with(file)
            while True:
                try:
                    await self._revoke_with(file)
                except NavarchError as error:
                    log.warning("%s was replaced, and cannot be used: %s", file, error)
                    await self._clock.sleep(CHECK_SECONDS)
        finally:
            watching.cancel()

    async def _revoke_with(self, file: Path) -> None:
        """Revoke until one of the files is replaced, as it is with the operator's key."""
        files = (file, file.with_name(f"{REVOKER}.creds"))
        used = _contents(files)
        keys = read_agent_keys(file)
        server = await NatsBus.connect(revoker_options(self._nats, file.parent))
        try:
            while _contents(files) == used:
                await self._revoke_and_wait(keys, server)
        finally:
            await server.close()

    async def _watch(self) -> None:
        async for entry in self._bus.watch(INSTANCES):
            if entry.removed:
                self._show(entry.key, None)
                continue
            try:
                record = _decoder.decode(entry.value)
            except msgspec.MsgspecError:
                continue  # reported by those who read it
            self._show(entry.key, record)
            until = revoked_until(record, self._valid_seconds)
            self._running.pop(record.agent_key, None)
            if record.state == "running" and record.agent_key and not until:
                self._running[record.agent_key] = entry.key
            if until:
                self._revoked[record.agent_key] = until
                self._readmitted.discard(record.agent_key)
            elif record.readmitted_at is not None:
                self._revoked.pop(record.agent_key, None)
                self._readmitted.add(record.agent_key)
            if until or record.readmitted_at is not None:
                self._changed.set()

    def _show(self, key: str, record: InstanceRecord | None) -> None:
        """Report a node for as long as it is disconnected."""
        before = self._disconnected.pop(key, None)
        if record is not None and is_disconnected(record):
            self._disconnected[key] = record
        if before is not None or key in self._disconnected:
            found = [disconnected_failure(each) for each in self._disconnected.values()]
            self._failures.update("disconnected nodes", found)

    async def _revoke_and_wait(self, keys: AgentKeys, server: Requests) -> None:
        self._changed.clear()
        try:
            await self._end_crowds(keys, server)
            await self.revoke(keys, server)
        except NavarchError as error:
            log.warning("credentials of nodes are not revoked: %s", error)
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                await self._changed.wait()
                await self._clock.sleep(GATHER_SECONDS)

    async def _end_crowds(self, keys: AgentKeys, server: Requests) -> None:
        """Refuse the credentials whose connections keep other agents out."""
        found = []
        for each in await crowds(server, keys.account):
            if each.key in self._running:
                request = DisconnectRequest(pool=each.pool, node=each.node, reason=each.reason)
                answer = await self._disconnector.disconnect(request)
                why = "" if answer.disconnected else f"It is not disconnected: {answer.reason}"
            else:
                until = self._clock.now().timestamp() + REFUSED_SECONDS
                self._revoked.setdefault(each.key, until)
                why = "No running instance has this key: it is refused for an hour"
            if why:
                log.warning("one node has many connections", extra={"node": each.node, "why": why})
                found.append(crowd_failure(each, why))
        self._failures.update("crowds of connections", found)

    async def revoke(self, keys: AgentKeys, server: Requests) -> None:
        """Give the server the list, unless it has it."""
        now = self._clock.now().timestamp()
        self._revoked = {key: each for key, each in self._revoked.items() if each > now}
        token = await read_account(server, keys.account)
        claims = claims_of_token(token)
        if not claims:
            raise SetupError(f"the server has no account {keys.account}: is it the same fleet's?")
        current = claims["nats"].get("revocations", {})
        for key in self._running.keys() & current.keys() - self._readmitted:
            await self._record_mistake(self._running[key])
        wanted = merge(current, self._revoked, now, self._readmitted)
        if wanted == current:
            return
        await replace_accounts(server, [with_revocations(keys, token, wanted)])
        if added := wanted.keys() - current.keys():
            log.info("revoked credentials of nodes", extra={"count": len(added)})

    async def _record_mistake(self, key: str) -> None:
        """Record a running node whose key is revoked as disconnected: it is not replaced for it."""
        now = self._clock.now()

        def decide(record: InstanceRecord) -> InstanceRecord:
            if record.disconnected_at or record.readmitted_at:
                return record
            return replace(record, disconnected_at=now, disconnected_reason=MISTAKEN_REASON)

        await self._store.amend(key, decide, "running")
