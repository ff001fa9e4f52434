"""Sets up a new node over SSH: waits for its address, logs in, runs the pool's commands in order.

The first host key is pinned in the instance's record before anything is run: another key at the
same address later means another machine. A broken connection is opened again, and commands that
have succeeded are not repeated.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import asyncssh
from msgspec.structs import replace

from schemas.addresses import host_and_port
from schemas.instance_records import InstanceRecord
from schemas.node_events import SetupRan
from schemas.node_records import node_key
from schemas.saga_params import SetupSpec
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import SetupError
from services.provisioner.bootstrap.setup_plan import (
    DONE_BEFORE,
    OUTPUT_CHARS_MAX,
    SetupCommandError,
    failure_message,
    first_line,
    render_command,
    script,
)
from services.provisioner.bootstrap.user_data import BootstrapTemplates, redact
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider_calls import Providers
from services.runtime.event_publisher import publish_event
from services.saga.participant import StepFailure
from services.settings import placeholders

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 2.0
"""Between two checks for an address, and two login attempts."""
CONNECTIONS_MAX: Final = 128
"""Nodes that one replica sets up at once."""
BREAKS_MAX: Final = 5
"""How often the connection may break."""
KEEPALIVE_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class _Job:
    """The commands of one node."""

    record: InstanceRecord
    spec: SetupSpec
    commands: tuple[str, ...]
    saga: str
    secret: str = ""
    """Credentials in the commands: never in a log, an event or an error."""

    def text(self, index: int) -> str:
        """Return a command's first line as configured, without credentials."""
        return first_line(self.spec.commands[index])


class SshSetup:
    """Performs the SSH part of the bootstrap step."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: InstanceStore,
        providers: Providers,
        templates: BootstrapTemplates,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """`templates` renders the commands' placeholders."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._providers = providers
        self._templates = templates
        self._poll_seconds = poll_seconds
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)

    async def run(self, record: InstanceRecord, spec: SetupSpec, saga: str) -> None:
        """Run every command that has not run yet; raise StepFailure if one fails."""
        commands, secret = self._commands(record, spec)
        async with self._room:
            job = _Job(await self._wait_for_address(record, spec), spec, commands, saga, secret)
            done = 0
            for _ in range(BREAKS_MAX):
                done = await self._run_from(job, done)
                if done == len(commands):
                    return
        raise StepFailure(
            f"the SSH connection to {job.record.address} broke {BREAKS_MAX} times; "
            f"{done} of {len(commands)} setup commands have run"
        )

    async def _run_from(self, job: _Job, done: int) -> int:
        """Run the remaining commands over one connection; return how many are done."""
        connection = await self._log_in(job.record, job.spec)
        try:
            while done < len(job.commands):
                await self._run_command(connection, job, done)
                done += 1
        except (asyncssh.Error, OSError) as error:
            log.info("connection broke", extra={"node": job.record.instance, "why": str(error)})
        finally:
            connection.close()
            with suppress(asyncssh.Error, OSError):
                await connection.wait_closed()
        return done

    def _commands(self, record: InstanceRecord, spec: SetupSpec) -> tuple[tuple[str, ...], str]:
        """Return the rendered commands, and the credentials in them."""
        names = placeholders.names_in("\n".join(spec.commands))
        try:
            self._templates.require_configured(spec.private_key_path, "ssh_private_key_path")
            values = self._templates.values(record, names)
        except SetupError as error:
            raise StepFailure(str(error), error="INVALID") from error
        rendered = []
        for number, command in enumerate(spec.commands, 1):
            try:
                rendered.append(render_command(command, values))
            except SetupCommandError as error:
                raise StepFailure(
                    f"setup command {number} of pool {record.pool} {error}", error="INVALID"
                ) from error
        return tuple(rendered), values["Credentials"]

    async def _wait_for_address(self, record: InstanceRecord, spec: SetupSpec) -> InstanceRecord:
        """Return the record once the instance has an address."""
        until = self._clock.monotonic() + spec.address_seconds
        calls = self._providers.get(record.provider)
        while not record.address:
            listed = await calls.list_instances()
            found = next((each for each in listed if each.provider_id == record.provider_id), None)
            if found is not None and found.address:
                return await self._record(record, address=found.address)
            if self._clock.monotonic() >= until:
                raise StepFailure(
                    f"{record.provider} assigned {record.instance} no address within "
                    f"{spec.address_seconds:g} s (ip_wait_timeout)"
                )
            await self._clock.sleep(self._poll_seconds)
        return record

    async def _log_in(
        self, record: InstanceRecord, spec: SetupSpec
    ) -> asyncssh.SSHClientConnection:
        """Return a connection with the pinned host key; the first key is pinned."""
        until = self._clock.monotonic() + spec.login_seconds
        host, port = host_and_port(record.address, spec.port)
        while True:
            try:
                connection = await asyncssh.connect(
                    host,
                    port,
                    username=spec.user,
                    client_keys=[spec.private_key_path],
                    known_hosts=None,  # checked below, against the pinned key
                    agent_path=None,
                    config=None,
                    connect_timeout=spec.connect_seconds,
                    login_timeout=spec.connect_seconds,
                    keepalive_interval=KEEPALIVE_SECONDS,
                )
            except (asyncssh.KeyImportError, FileNotFoundError, PermissionError) as error:
                raise StepFailure(
                    f"the key {spec.private_key_path} (ssh_private_key_path) cannot be used: "
                    f"{error}",
                    error="INVALID",
                ) from error
            except (asyncssh.Error, OSError) as error:
                # Refused logins as well: a machine that boots has no keys at first.
                if self._clock.monotonic() >= until:
                    where = f"{spec.user}@{host}:{port}"
                    raise StepFailure(
                        f"SSH login to {where} failed for {spec.login_seconds:g} s "
                        f"(ssh_timeout): {error or type(error).__name__}"
                    ) from error
                await self._clock.sleep(self._poll_seconds)
            else:
                await self._pin(record, connection)
                return connection

    async def _pin(self, record: InstanceRecord, connection: asyncssh.SSHClientConnection) -> None:
        key = connection.get_server_host_key()
        assert key is not None
        shown = " ".join(key.export_public_key("openssh").decode().split()[:2])
        pinned = await self._record(record, host_key=shown)
        if pinned.host_key != shown:
            connection.close()
            raise StepFailure(
                f"another machine answers at {record.address}: its host key is not the one that "
                f"{record.instance} showed first",
                error="AUTH",
            )

    async def _run_command(
        self, connection: asyncssh.SSHClientConnection, job: _Job, index: int
    ) -> None:
        """Run one command, unless its marker exists; publish the result."""
        command, number, of = job.commands[index], index + 1, len(job.commands)
        started = self._clock.monotonic()
        try:
            ended = await connection.run(
                script(command, number, job.record.token, job.spec),
                check=False,
                timeout=job.spec.command_seconds,
                errors="replace",
            )
        except (asyncssh.TimeoutError, TimeoutError) as error:
            raise StepFailure(
                f"setup command {number} of {of} ({job.text(index)}) "
                f"did not end within {job.spec.command_seconds:g} s (command_timeout)"
            ) from error
        if ended.exit_status is None or ended.exit_status < 0:
            raise asyncssh.ConnectionLost(f"command {number} ended without an exit status")
        written = "".join(str(each) for each in (ended.stdout, ended.stderr) if each)
        output = redact(written, job.secret)
        if not output.startswith(DONE_BEFORE):
            seconds = self._clock.monotonic() - started
            await self._publish_result(job, index, ended.exit_status, output, seconds)
        if ended.exit_status != 0:
            raise StepFailure(
                failure_message(number, of, job.text(index), ended.exit_status, output)
            )

    async def _publish_result(
        self, job: _Job, index: int, status: int, output: str, seconds: float
    ) -> None:
        record = job.record
        event = SetupRan(
            id=f"setup-{job.saga}-{index + 1}-{status}",
            time=self._clock.now(),
            cause=job.saga,
            pool=record.pool,
            node=record.instance,
            command=index + 1,
            commands=len(job.commands),
            text=job.text(index),
            exit_status=status,
            duration_seconds=seconds,
            output=output[-OUTPUT_CHARS_MAX:],
            saga=job.saga,
        )
        await publish_event(self._bus, event)

    async def _record(
        self, record: InstanceRecord, *, address: str = "", host_key: str = ""
    ) -> InstanceRecord:
        """Record the address or host key, unless the record has one; return the record."""

        def decide(now: InstanceRecord | None) -> InstanceRecord | None:
            if now is None or now.state != "running":
                return None
            return replace(now, address=now.address or address, host_key=now.host_key or host_key)

        changed = await self._store.change(node_key(record.pool, record.instance), decide)
        if changed is None or changed.state != "running":
            raise StepFailure(f"instance {record.instance} no longer runs")
        return changed
