"""Containers of a Docker engine as nodes: started from one image, entered over SSH.

For tests, demonstrations, and one big machine that several nodes share. A container's name derives
from fleet, pool and node, so that the engine refuses a second one (409), and the first is adopted.
It is created, given its keys, and started. A container that does not run was abandoned by a crash;
it is listed as stopped, and the next attempt continues with it.

The containers' labels show which GPUs are assigned. A replica checks them again before it starts
the container it created; of two containers with the same GPU only one is started.
"""

import asyncio
import io
import re
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import httpx
import msgspec

from schemas.duration import Duration
from schemas.settings import FilePath, Setting
from services.provisioner.instances.instance_tags import FLEET_TAG, TOKEN_TAG, tags_of, with_tags
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    InstanceStatus,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.docker_engine import Container, Engine
from services.provisioner.providers.provider_secret import read_text
from services.provisioner.providers.request_checks import invalid

TYPE_TAG: Final = "navarch-type"
REGION_TAG: Final = "navarch-region"
ZONE_TAG: Final = "navarch-zone"
GPUS_TAG: Final = "navarch-gpus"
SSH_PORT: Final = 22
MIB: Final = 1_048_576
NANO: Final = 1_000_000_000
KEY_WORDS_MIN: Final = 2
TRIES_MAX: Final = 25
"""Attempts to find a container that another replica is creating or removing."""
LOOK_SECONDS: Final = 0.2
"""Between two attempts: the engine reserves a name before it lists the container."""

CONTAINER_ID: Final = re.compile(r"[0-9a-f]{64}")

STATUSES: Final[dict[str, InstanceStatus]] = {
    "running": "running",
    "paused": "running",
    "restarting": "running",
    "removing": "stopping",
    "dead": "stopping",
    "created": "stopped",
    "exited": "stopped",
}
"""The engine's state -> ours."""


class DockerProvider:
    """Runs nodes as containers of one engine."""

    capabilities = Capabilities(idempotency_token=True, fixed_capacity=True)
    """The engine refuses a second container of one name, and its list never lags.

A container shares its host's kernel: a reboot would repair nothing, so it is not offered."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `providers: {docker: {image: navarch-node}}`."""

        image: str
        """Must be on the engine's host, since no image is pulled; it runs an SSH server."""
        socket: str = "/var/run/docker.sock"
        """Socket of the Docker engine."""
        authorized_keys_file: FilePath = ""
        """Public keys that may log in, in addition to the pool's `ssh_keys`."""
        home: str = "/root"
        """Directory of `.ssh/authorized_keys`, which root owns."""
        command: tuple[str, ...] = ()
        """Empty: the image's own."""
        environment: dict[str, str] = msgspec.field(default_factory=dict)
        """Environment variables of each container."""
        network: str = "bridge"
        """Network of the engine that containers join."""
        publish_address: str = ""
        """Address at which the host publishes each container's SSH port; empty: none."""
        ssh_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = SSH_PORT
        """Port of the image's SSH server."""
        gpus: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
        """GPUs of the host, each assigned to one container; 0: none."""
        containers_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 16
        """More containers than this are not started."""
        cpus: Annotated[float, msgspec.Meta(ge=0, le=4096)] = 0.0
        """Of each container; 0: unlimited, as for `memory_mib`."""
        memory_mib: Annotated[int, msgspec.Meta(ge=0)] = 0
        """Memory of each container, in MiB; 0: unlimited."""
        shm_mib: Annotated[int, msgspec.Meta(ge=1)] = 64
        """Shared memory (`/dev/shm`) of each container, in MiB."""
        pids_max: Annotated[int, msgspec.Meta(ge=16)] = 4096
        """Processes that each container may have."""
        timeout: Duration = Duration(30)
        """Time limit of one request."""

    def __init__(
        self,
        *,
        options: Options,
        environment: Environment,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.options = options
        self.name = environment.name
        self._keys = _keys(options, environment.name)
        self._engine = Engine(options.socket, float(options.timeout), transport)

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Start a container, or continue with the one of this token."""
        keys = self._keys_for(request)
        for _ in range(TRIES_MAX):
            existing = await self._containers()
            mine = _with_token(existing, request.token)
            if mine is None:
                body = self._body(request, self._free_gpus(request, existing))
                made = await self._engine.create(_container(request), body)
                if made is None:
                    mine = _with_token(await self._containers(), request.token)
                    if mine is None:
                        await self._refuse_stranger(request)
                        await asyncio.sleep(LOOK_SECONDS)
                        continue
            ident = mine.id if mine is not None else made or ""
            if mine is not None and STATUSES.get(mine.state, "running") == "running":
                return self._instance(mine)
            if await self._start(ident, request, keys):
                found = _with_token(await self._containers(), request.token)
                if found is not None:
                    return self._instance(found)
        raise ProviderError(
            "TRANSIENT", f"other replicas are creating or removing {_container(request)}"
        )

    async def terminate(self, provider_id: str) -> None:
        """Remove a container with its anonymous volumes; success if there is none.

        The engine takes names and beginnings of IDs too, which name no container here, and knows
        containers of others: one that no fleet has labelled is left alone.
        """
        is_id = CONTAINER_ID.fullmatch(provider_id)
        labels = await self._engine.labels(provider_id) if is_id else None
        if labels is None:
            return
        if FLEET_TAG not in labels:
            raise invalid(
                f"container {provider_id} has no label {FLEET_TAG}: it is no node, and was left"
            )
        await self._engine.remove(provider_id, force=True)

    async def list(self) -> list[Instance]:
        """Return every container with a fleet's label, in any state."""
        return [self._instance(each) for each in await self._containers()]

    async def close(self) -> None:
        """Close the connections."""
        await self._engine.close()

    # --- the parts of a launch -------------------------------------------------------------------

    def _free_gpus(
        self, request: ProvisionRequest, existing: Sequence[Container]
    ) -> tuple[str, ...]:
        """Return free GPUs; CAPACITY if there are too few, or too many containers."""
        if len(existing) >= self.options.containers_max:
            raise ProviderError(
                "CAPACITY",
                f"{len(existing)} containers exist, and `containers_max` of provider {self.name} "
                f"is {self.options.containers_max}",
            )
        if not self.options.gpus or not request.gpu_count:
            return ()
        if request.gpu_count > self.options.gpus:
            raise ProviderError(
                "UNSUPPORTED",
                f"{request.gpu_count} GPUs are requested, and `gpus` of provider {self.name} is "
                f"{self.options.gpus}",
            )
        taken = frozenset[str]().union(*map(_gpus, existing))
        free = [str(each) for each in range(self.options.gpus) if str(each) not in taken]
        if len(free) < request.gpu_count:
            raise ProviderError(
                "CAPACITY",
                f"{len(free)} of the host's {self.options.gpus} GPUs are free, and "
                f"{request.gpu_count} are requested",
            )
        return tuple(free[: request.gpu_count])

    async def _start(self, ident: str, request: ProvisionRequest, keys: str) -> bool:
        """Copy the keys into it and start it; False if it was removed meanwhile."""
        if await self._has_conflict(ident):
            # Not by force: another replica may have started it by now.
            await self._engine.remove(ident, force=False)
            raise ProviderError("TRANSIENT", "another container has its GPU, or there are too many")
        try:
            unpacked = await self._engine.unpack(ident, self._files(request, keys))
            return unpacked and await self._engine.start(ident)
        except ProviderError as error:
            if not error.rule.in_doubt:
                await self._engine.remove(ident, force=True)  # nothing else would remove it
            raise

    async def _has_conflict(self, ident: str) -> bool:
        """Whether there are too many containers, or another one has its GPU.

        Of two containers with one GPU the one with the smaller ID stays, unless the other runs
        already: the engine removes only one that does not run.
        """
        existing = await self._containers()
        mine = next((each for each in existing if each.id == ident), None)
        if mine is None:
            return False
        if len(existing) > self.options.containers_max:
            return True
        for other in existing:
            if other.id == ident or not _gpus(other) & _gpus(mine):
                continue
            yields = other.state == "created" and other.id > ident
            if not (yields and await self._engine.remove(other.id, force=False)):
                return True
        return False

    async def _refuse_stranger(self, request: ProvisionRequest) -> None:
        """Raise INVALID if a container of another launch has the name."""
        name = _container(request)
        labels = await self._engine.labels(name)
        if labels is not None and labels.get(TOKEN_TAG) != request.token:
            raise invalid(
                f"another container is named {name}; remove it: docker rm -f {name}",
            )

    async def _containers(self) -> Sequence[Container]:
        return await self._engine.containers(FLEET_TAG)

    def _keys_for(self, request: ProvisionRequest) -> str:
        for key in request.ssh_keys:
            if len(key.split()) < KEY_WORDS_MIN:
                raise invalid(
                    f"`ssh_keys` of pool {request.pool} must be complete public keys for provider "
                    f"{self.name} (`ssh-ed25519 AAAA…`), not {key!r}",
                )
        keys = [*self._keys, *request.ssh_keys]
        return "".join(f"{each}\n" for each in dict.fromkeys(keys))

    def _body(self, request: ProvisionRequest, gpus: tuple[str, ...]) -> dict[str, Any]:
        options = self.options
        port = f"{options.ssh_port}/tcp"
        labels = tags_of(request) | {
            TYPE_TAG: request.instance_type,
            REGION_TAG: request.region,
            ZONE_TAG: request.zone,
            GPUS_TAG: " ".join(gpus),
        }
        host: dict[str, Any] = {
            "NetworkMode": options.network,
            "PidsLimit": options.pids_max,
            "ShmSize": options.shm_mib * MIB,
            # It starts with its host, as a machine does.
            "RestartPolicy": {"Name": "unless-stopped"},
        }
        if options.memory_mib:
            # The same for memory and swap: no swap.
            host |= dict.fromkeys(("Memory", "MemorySwap"), options.memory_mib * MIB)
        if options.cpus:
            host["NanoCpus"] = int(options.cpus * NANO)
        if gpus:
            host["DeviceRequests"] = [
                {"Driver": "", "DeviceIDs": list(gpus), "Capabilities": [["gpu"]]}
            ]
        body: dict[str, Any] = {
            "Image": options.image,
            "Hostname": request.name,
            "Labels": labels,
            "Env": [f"{key}={value}" for key, value in sorted(options.environment.items())],
            "HostConfig": host,
        }
        if options.command:
            body["Cmd"] = list(options.command)
        if options.publish_address:
            body["ExposedPorts"] = {port: {}}
            host["PortBindings"] = {port: [{"HostIp": options.publish_address, "HostPort": ""}]}
        return body

    def _files(self, request: ProvisionRequest, keys: str) -> bytes:
        """Return an archive of the files that the container needs at its start."""
        folder = self.options.home.strip("/") + "/.ssh"
        files = [(folder, f"{folder}/authorized_keys", keys)]
        if request.user_data:
            files.append(("etc/navarch", "etc/navarch/user-data", request.user_data))
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for directory, name, text in files:
                place = tarfile.TarInfo(directory)
                place.type, place.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(place)
                file = tarfile.TarInfo(name)
                file.size, file.mode = len(text.encode()), 0o600
                archive.addfile(file, io.BytesIO(text.encode()))
        return packed.getvalue()

    def _instance(self, listed: Container) -> Instance:
        labels = listed.labels or {}
        return with_tags(
            Instance(
                name=next(iter(listed.names), listed.id).removeprefix("/"),
                provider_id=listed.id,
                # A container in an unknown state exists.
                status=STATUSES.get(listed.state, "running"),
                instance_type=labels.get(TYPE_TAG, ""),
                region=labels.get(REGION_TAG, ""),
                zone=labels.get(ZONE_TAG, ""),
                address=self._address(listed),
                created_at=datetime.fromtimestamp(listed.created, UTC),
            ),
            labels,
        )

    def _address(self, listed: Container) -> str:
        address, port = listed.address(self.options.ssh_port), self.options.ssh_port
        named = ":" in address or port == SSH_PORT
        return address if named or not address else f"{address}:{port}"


def _gpus(container: Container) -> frozenset[str]:
    """Return the host's GPUs that are assigned to a container."""
    return frozenset(container.label(GPUS_TAG).split())


def _container(request: ProvisionRequest) -> str:
    return f"{request.fleet}.{request.pool}.{request.name}"


def _with_token(existing: Sequence[Container], token: str) -> Container | None:
    return next((each for each in existing if each.label(TOKEN_TAG) == token), None)


def _keys(options: DockerProvider.Options, name: str) -> tuple[str, ...]:
    file = options.authorized_keys_file
    if not file:
        return ()
    lines = read_text(file, f"providers.{name}.authorized_keys_file").splitlines()
    return tuple(each.strip() for each in lines if each.strip())
