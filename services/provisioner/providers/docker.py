"""Containers of a Docker engine as nodes: started from one image, entered over SSH.

For tests, for a demonstration, and for one big machine that is shared out. It speaks the Engine API
over the engine's own socket. A container's name derives from fleet, pool and node, so that the
engine itself refuses a second one (409), which is then looked up and taken as the first. It is
created, given its keys, and started: one that runs is whole, and one that does not was left in the
middle by a crash and is listed as stopped, so that the next try goes on with it.

GPUs and places are shared out by what the containers' own labels say. Who has created a container
looks again before starting it, and of two that were given the same GPU only one is started.
"""

import asyncio
import io
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import httpx
import msgspec

from schemas.duration import Duration
from schemas.settings import Setting
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

TYPE_TAG: Final = "navarch-type"
REGION_TAG: Final = "navarch-region"
ZONE_TAG: Final = "navarch-zone"
GPUS_TAG: Final = "navarch-gpus"
SSH_PORT: Final = 22
MIB: Final = 1_048_576
NANO: Final = 1_000_000_000
KEY_WORDS_MIN: Final = 2
TRIES_MAX: Final = 25
"""To find a container that another replica is creating or removing."""
LOOK_SECONDS: Final = 0.2
"""Between two looks: the engine reserves a name before it lists the container."""

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
    """Containers of one engine."""

    class Options(Setting, frozen=True, kw_only=True):
        """`providers: {docker: {image: navarch-node}}`."""

        image: str
        """Must be on the engine's host already; nothing is pulled. It runs an SSH server."""
        socket: str = "/var/run/docker.sock"
        authorized_keys_file: str = ""
        """Public keys that may log in, beside those of the pool's `ssh_keys`."""
        home: str = "/root"
        """Whose `.ssh/authorized_keys` is written; owned by root."""
        command: tuple[str, ...] = ()
        """Empty: the image's own."""
        environment: dict[str, str] = msgspec.field(default_factory=dict)
        network: str = "bridge"
        publish_address: str = ""
        """Where the host offers each container's SSH port, at a free port; empty: nowhere."""
        ssh_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = SSH_PORT
        """Where the image's SSH server listens."""
        gpus: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
        """GPUs of the host, given to one container each; 0: no container sees any."""
        containers_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 16
        cpus: Annotated[float, msgspec.Meta(ge=0, le=4096)] = 0.0
        """Of each container; 0: no bound. So with the next one."""
        memory_mib: Annotated[int, msgspec.Meta(ge=0)] = 0
        shm_mib: Annotated[int, msgspec.Meta(ge=1)] = 64
        pids_max: Annotated[int, msgspec.Meta(ge=16)] = 4096
        timeout: Duration = Duration(30)
        """Of one request."""

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

    @property
    def capabilities(self) -> Capabilities:
        """The engine refuses a second container of one name, and its list never lags.

        A container shares its host's kernel: a reboot would repair nothing, so it is not offered.
        """
        return Capabilities(idempotency_token=True, tags=True)

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Start a container, or go on with the one that this token has made."""
        keys = self._keys_for(request)
        for _ in range(TRIES_MAX):
            existing = await self._listed()
            mine = _of(existing, request.token)
            if mine is None:
                body = self._body(request, self._free_gpus(request, existing))
                made = await self._engine.create(_container(request), body)
                if made is None:
                    mine = _of(await self._listed(), request.token)
                    if mine is None:
                        await self._refuse_stranger(request)
                        await asyncio.sleep(LOOK_SECONDS)
                        continue
            ident = mine.id if mine is not None else made or ""
            if mine is not None and STATUSES.get(mine.state, "running") == "running":
                return self._instance(mine)
            if await self._started(ident, request, keys):
                found = _of(await self._listed(), request.token)
                if found is not None:
                    return self._instance(found)
        raise ProviderError(
            "TRANSIENT", f"{_container(request)} is being made or removed by others"
        )

    async def terminate(self, provider_id: str) -> None:
        """Remove a container with its anonymous volumes; one that is not there is gone."""
        await self._engine.remove(provider_id, force=True)

    async def list(self) -> list[Instance]:
        """Every container that carries a fleet's label, in whatever state."""
        return [self._instance(each) for each in await self._listed()]

    async def close(self) -> None:
        """Give back the connections."""
        await self._engine.close()

    # --- the parts of a launch -------------------------------------------------------------------

    def _free_gpus(
        self, request: ProvisionRequest, existing: Sequence[Container]
    ) -> tuple[str, ...]:
        """The GPUs to give; CAPACITY where there are too few, or no more place."""
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
                f"{request.gpu_count} GPUs are asked for, and `gpus` of provider {self.name} is "
                f"{self.options.gpus}",
            )
        taken = frozenset[str]().union(*map(_gpus, existing))
        free = [str(each) for each in range(self.options.gpus) if str(each) not in taken]
        if len(free) < request.gpu_count:
            raise ProviderError(
                "CAPACITY",
                f"{len(free)} of the host's {self.options.gpus} GPUs are free, and "
                f"{request.gpu_count} are asked for",
            )
        return tuple(free[: request.gpu_count])

    async def _started(self, ident: str, request: ProvisionRequest, keys: str) -> bool:
        """Give it its keys and start it; False where it was removed meanwhile."""
        if await self._crowded(ident):
            # Not by force: another replica may have started it by now.
            await self._engine.remove(ident, force=False)
            raise ProviderError("TRANSIENT", "another container was given the same GPU or place")
        try:
            unpacked = await self._engine.unpack(ident, self._files(request, keys))
            return unpacked and await self._engine.start(ident)
        except ProviderError as error:
            if not error.rule.in_doubt:
                await self._engine.remove(ident, force=True)  # it would never be removed
            raise

    async def _crowded(self, ident: str) -> bool:
        """Whether there are too many with it, or another one has its GPU.

        Of two that were given one GPU the one with the smaller id stays, unless the other runs
        already: the engine removes it only if it does not, and its maker then finds it gone.
        """
        existing = await self._listed()
        mine = next((each for each in existing if each.id == ident), None)
        if mine is None:
            return False
        if len(existing) > self.options.containers_max:
            return True
        for other in existing:
            if other.id == ident or not _gpus(other) & _gpus(mine):
                continue
            begun = other.state == "created" and other.id > ident
            if not (begun and await self._engine.remove(other.id, force=False)):
                return True
        return False

    async def _refuse_stranger(self, request: ProvisionRequest) -> None:
        """INVALID where the name is taken by a container that is not this token's."""
        name = _container(request)
        labels = await self._engine.labels(name)
        if labels is not None and labels.get(TOKEN_TAG) != request.token:
            raise ProviderError(
                "INVALID",
                f"another container is named {name}; remove it: docker rm -f {name}",
            )

    async def _listed(self) -> Sequence[Container]:
        return await self._engine.containers(FLEET_TAG)

    def _keys_for(self, request: ProvisionRequest) -> str:
        for key in request.ssh_keys:
            if len(key.split()) < KEY_WORDS_MIN:
                raise ProviderError(
                    "INVALID",
                    f"`ssh_keys` of pool {request.pool} must hold whole public keys for provider "
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
            # It comes back with its host, as a machine does.
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
        """The archive with what the container is to find when it starts."""
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
                # A container with an unknown state exists.
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
    """The host's GPUs that a container has."""
    return frozenset(container.label(GPUS_TAG).split())


def _container(request: ProvisionRequest) -> str:
    return f"{request.fleet}.{request.pool}.{request.name}"


def _of(existing: Sequence[Container], token: str) -> Container | None:
    return next((each for each in existing if each.label(TOKEN_TAG) == token), None)


def _keys(options: DockerProvider.Options, name: str) -> tuple[str, ...]:
    file = options.authorized_keys_file
    if not file:
        return ()
    lines = read_text(file, f"providers.{name}.authorized_keys_file").splitlines()
    return tuple(each.strip() for each in lines if each.strip())
